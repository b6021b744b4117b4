"""Messages between launcher, supervisor and workers, their socket, and the claims of runs."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from s3notify_platform.kernel.errors import UnavailableError

HANDOVER_SECONDS: Final = 10.0
"""Seconds that a launcher waits for an answer. The supervisor answers at once, and does not first wait for a worker."""

MESSAGE_MAX: Final = 1 << 20
_PATH_MAX: Final = 100

Message = dict[str, Any]
Claimant = Literal["warm", "cold"]


class NobodyThereError(UnavailableError):
    """No supervisor serves this home; nothing was sent."""


class NoAnswerError(UnavailableError):
    """The supervisor did not answer, but may have received the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKey:
    """The combination of code and Spark configuration for which a worker is made. Runs with the same key can use the
    same worker.

    `origin`: the place from which the definitions are loaded, serialized by Dagster. `server_id`: the code server's id,
    which changes with each reload. `spark`: digest of the static Spark configuration.
    """

    location: str
    origin: str
    spark: str
    server_id: str

    @property
    def place(self) -> tuple[str, str, str]:
        """The key without the version of the code."""
        return self.location, self.origin, self.spark

    def message(self) -> Message:
        """The key as a message."""
        return asdict(self)

    @classmethod
    def of(cls, message: Message) -> Self:
        """The inverse of `message`."""
        return cls(**{name: str(message[name]) for name in cls.__slots__})


class Home:
    """The folder `warm` of a DAGSTER_HOME. Only the folder's owner can enter the folder, because anyone who can send to
    the folder's socket can run code.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root.resolve() / "warm"
        self.claims = self.folder / "runs"
        self.log = self.folder / "workers.log"

    def make(self) -> None:
        """Creates the folder."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.claims.mkdir(exist_ok=True)

    # Claims

    def claim(self, run_id: str, claimant: Claimant) -> bool:
        """Claims a run; False if it is already claimed. Only the claimant starts the run."""
        self.claims.mkdir(parents=True, exist_ok=True)
        try:
            self._claim(run_id).symlink_to(claimant)  # the link and its target appear in one step
        except FileExistsError:
            return False
        return True

    def claimant(self, run_id: str) -> str | None:
        """The claimant of a run; None if it is not claimed."""
        try:
            return str(self._claim(run_id).readlink())
        except OSError:
            return None

    def forget(self, run_id: str) -> None:
        """Removes the claim of a run that has ended."""
        self._claim(run_id).unlink(missing_ok=True)

    def claimed(self) -> Iterator[tuple[str, str]]:
        """All claimed runs, with their claimants."""
        for entry in sorted(self.claims.iterdir()):
            if claimant := self.claimant(entry.name):
                yield entry.name, claimant

    def _claim(self, run_id: str) -> Path:
        return self.claims / Path(run_id).name

    # Messages

    @contextmanager
    def address(self) -> Iterator[str]:
        """The socket's address. The address is short even if the folder's path is long, because the length of a
        socket's address is limited.
        """
        path = self.folder / "socket"
        if len(os.fsencode(path)) <= _PATH_MAX:
            yield str(path)
            return
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            yield f"/proc/self/fd/{folder}/socket"
        finally:
            os.close(folder)

    def listen(self) -> socket.socket:
        """The supervisor's socket. Call this only after an earlier supervisor has ended."""
        self.make()
        with self.address() as address:
            Path(address).unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(address)
            listening.listen(64)
        return listening

    def ask(self, message: Message, seconds: float = HANDOVER_SECONDS) -> Message:
        """The supervisor's answer. Raises `NobodyThereError` if there is no supervisor, and `NoAnswerError` if there is
        no answer within `seconds`.
        """
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(seconds)
            try:
                with self.address() as address:
                    asking.connect(address)
            except (FileNotFoundError, ConnectionRefusedError, PermissionError) as error:
                raise NobodyThereError(f"no supervisor in {self.folder}") from error
            except OSError as error:  # the supervisor is running, but busy
                raise NoAnswerError(f"the supervisor in {self.folder} does not answer: {error}") from error
            try:
                asking.sendall(encoded(message))
                return received(asking)
            except (OSError, ValueError) as error:
                raise NoAnswerError(f"the supervisor in {self.folder} does not answer: {error}") from error


def encoded(message: Message) -> bytes:
    """The bytes of a message: JSON in one line."""
    return json.dumps(message).encode() + b"\n"


def received(connection: socket.socket) -> Message:
    """The next message. `ValueError` if the connection ends before the message is complete, or if the bytes are not a
    message.
    """
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(65_536)
        if not part or len(line) > MESSAGE_MAX:
            raise ValueError("not a message")
        line += part
    return decoded(line)


def decoded(line: bytes) -> Message:
    """The inverse of `encoded`. `ValueError` if the line is not a message."""
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not a message")  # noqa: TRY004 - like for a line that is not JSON
    return found
