"""What launcher, supervisor and workers send each other: where, how, and who has claimed a run."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from s3notify_platform.kernel.errors import UnavailableError

ANSWER_SECONDS: Final = 10.0
"""How long a launcher waits for an answer; the supervisor decides without waiting for anything."""

MESSAGE_MAX: Final = 1 << 20
_PATH_MAX: Final = 100

Message = dict[str, Any]
Claimant = Literal["warm", "cold"]


class NobodyThereError(UnavailableError):
    """No supervisor serves this home; nothing was sent."""


class NoAnswerError(UnavailableError):
    """The request may have been received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerKey:
    """What a worker is made for. Runs of the same key can have the same worker.

    `origin`: where the definitions are loaded from, as Dagster serializes it. `server_id`: of the code server, another
    one after each reload. `spark`: digest of the static Spark configuration.
    """

    location: str
    origin: str
    spark: str
    server_id: str

    @property
    def place(self) -> tuple[str, str, str]:
        """The same for all versions of the code."""
        return self.location, self.origin, self.spark

    def message(self) -> Message:
        """As it is sent."""
        return asdict(self)

    @classmethod
    def of(cls, message: Message) -> Self:
        """Inverse of `message`."""
        return cls(**{name: str(message[name]) for name in cls.__slots__})


class Home:
    """The folder `warm` of a DAGSTER_HOME. Only its owner can enter it: who can send here runs code."""

    def __init__(self, root: Path) -> None:
        self.folder = root.resolve() / "warm"
        self.claims = self.folder / "runs"
        self.log = self.folder / "workers.log"

    def make(self) -> None:
        """Create the folder."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.claims.mkdir(exist_ok=True)

    # Claims

    def claim(self, run_id: str, claimant: Claimant) -> bool:
        """Claim a run; False if it is claimed. Who claims it starts it, and nobody else."""
        self.claims.mkdir(parents=True, exist_ok=True)
        try:
            self._claim(run_id).symlink_to(claimant)  # created with its content, or not at all
        except FileExistsError:
            return False
        return True

    def claimant(self, run_id: str) -> str | None:
        """Who has claimed a run, if anybody."""
        try:
            return str(self._claim(run_id).readlink())
        except OSError:
            return None

    def forget(self, run_id: str) -> None:
        """Remove the claim of a run that has ended."""
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
        """The socket's address; addresses are short, and paths may be long."""
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
        """The supervisor's socket. Whoever was there before has to have ended."""
        self.make()
        with self.address() as address:
            Path(address).unlink(missing_ok=True)
            listening = socket.socket(socket.AF_UNIX)
            listening.bind(address)
            listening.listen(64)
        return listening

    def ask(self, message: Message, seconds: float = ANSWER_SECONDS) -> Message:
        """The supervisor's answer. `NobodyThereError`; `NoAnswerError` after `seconds`."""
        with socket.socket(socket.AF_UNIX) as asking:
            asking.settimeout(seconds)
            try:
                with self.address() as address:
                    asking.connect(address)
            except (FileNotFoundError, ConnectionRefusedError, PermissionError) as error:
                raise NobodyThereError(f"no supervisor in {self.folder}") from error
            except OSError as error:  # it is there, and busy
                raise NoAnswerError(f"the supervisor in {self.folder} does not answer: {error}") from error
            try:
                asking.sendall(encoded(message))
                return received(asking)
            except (OSError, ValueError) as error:
                raise NoAnswerError(f"the supervisor in {self.folder} does not answer: {error}") from error


def encoded(message: Message) -> bytes:
    """A message as it is sent: JSON, in one line."""
    return json.dumps(message).encode() + b"\n"


def received(connection: socket.socket) -> Message:
    """The next message. `ValueError` if the other side ends before, or it is none."""
    line = b""
    while not line.endswith(b"\n"):
        part = connection.recv(65_536)
        if not part or len(line) > MESSAGE_MAX:
            raise ValueError("not a message")
        line += part
    return decoded(line)


def decoded(line: bytes) -> Message:
    """Inverse of `encoded`. `ValueError` if it is not one."""
    found = json.loads(line)
    if not isinstance(found, dict):
        raise ValueError("not a message")  # noqa: TRY004 - as of what is not JSON
    return found
