"""Certificate files that are renewed while a process runs: new connections use the renewed files."""

import logging
import ssl
from collections.abc import Callable, Iterable
from pathlib import Path

from s3notify_platform.kernel.errors import UsageError

_LOG = logging.getLogger(__name__)

State = tuple[tuple[int, ...], ...]


def state_of(files: Iterable[str | Path]) -> State:
    """A value that changes if one of the files, or the target of a link, is written, replaced or removed."""

    def state(file: str | Path) -> tuple[int, ...]:
        try:
            found = Path(file).stat()
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_ctime_ns

    return tuple(map(state, files))


class RenewedTls:
    """A TLS context for new connections, made again after its files have changed. Thread-safe.

    If the changed files cannot be used, like a certificate whose key is not replaced yet, the former context stays in
    use until the files change again. The error is logged.
    """

    def __init__(self, make: Callable[[], ssl.SSLContext], files: Iterable[str | Path]) -> None:
        """`make`: reads the files. `UsageError` if they cannot be used."""
        self._make = make
        self._files = tuple(files)
        self._state = state_of(self._files)
        self._context = make()

    def context(self) -> ssl.SSLContext:
        """The context for the next connection. After each change of the files, they are read once."""
        state = state_of(self._files)
        if state != self._state:
            self._state = state
            try:
                self._context = self._make()
            except UsageError as error:
                _LOG.warning("renewed certificates are not used: %s", error)
        return self._context
