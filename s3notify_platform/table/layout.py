"""The keys and paths of a table's objects. Pure."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from s3notify_platform.kernel.errors import UsageError

_VERSION: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """The keys of one table. All keys begin with `prefix`, which ends in `/`.

    Delta engines use the prefix as the table's location.
    """

    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix.endswith("/") or self.prefix.startswith("/") or "//" in self.prefix:
            raise UsageError(
                f"table prefix {self.prefix!r}: must end in '/', not start with '/', and not contain '//'"
            )

    # The Delta log

    @property
    def log(self) -> str:
        """Prefix of the log's objects."""
        return f"{self.prefix}_delta_log/"

    def version(self, version: int) -> str:
        """Returns the key of one version."""
        return f"{self.log}{version:020d}.json"

    def checkpoint(self, version: int) -> str:
        """Returns the key of the checkpoint of a version."""
        return f"{self.log}{version:020d}.checkpoint.parquet"

    @property
    def last_checkpoint(self) -> str:
        """Key of the object that names the newest checkpoint."""
        return f"{self.log}_last_checkpoint"

    def version_of(self, key: str) -> int | None:
        """Returns the version in this object, or None if the object is not a version."""
        match = _VERSION.fullmatch(key.removeprefix(self.log))
        return int(match[1]) if match else None

    def checkpoint_of(self, key: str) -> int | None:
        """Returns the version whose checkpoint is in this object, or None if the object is not a checkpoint."""
        match = _CHECKPOINT.fullmatch(key.removeprefix(self.log))
        return int(match[1]) if match else None

    # Data

    @property
    def data(self) -> str:
        """Prefix of the packs."""
        return f"{self.prefix}data/"

    def pack_path(self, name: str) -> str:
        """Returns the path of a pack in the log: relative to the table's prefix, and URI-encoded."""
        return quote(f"data/{name}.parquet", safe="/=")

    @property
    def symlinks(self) -> str:
        """The key of the list of packs, for engines that read such lists (`mirrors.symlink_manifest`)."""
        return f"{self.prefix}_symlink_format_manifest/manifest"

    def file(self, path: str) -> str:
        """Returns the key of a file that the log names. `UsageError`: the file is outside the table."""
        key = unquote(path)
        if re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:|/", key) or {"..", "."} & {*key.split("/")}:
            raise UsageError(f"the log names {path!r}, which is outside the table below {self.prefix!r}")
        return f"{self.prefix}{key}"

    # The files that the log does not name. Engines skip these folders, because their names begin with `_`.

    @property
    def own(self) -> str:
        """Prefix of the objects that only this platform reads."""
        return f"{self.prefix}_s3notify/"

    @property
    def manifests(self) -> str:
        """Prefix of the manifests."""
        return f"{self.own}manifest/"

    def manifest(self, number: int) -> str:
        """Returns the key of a manifest. `number`: the `n` of the manifest."""
        return f"{self.manifests}{number}.json"

    @property
    def states(self) -> str:
        """Prefix of the state files."""
        return f"{self.own}state/"

    def state(self, name: str) -> str:
        """Returns the key of a state file."""
        return f"{self.states}{name}.parquet"

    @property
    def rejects(self) -> str:
        """Prefix of the files of rejects."""
        return f"{self.own}rejects/"

    def reject_path(self, name: str) -> str:
        """Returns the path of a pack of rejects, relative to the table's prefix."""
        return f"_s3notify/rejects/{name}.parquet"

    @property
    def changes(self) -> str:
        """Prefix of the files that have changes of object states."""
        return f"{self.own}changes/"

    def changes_path(self, number: int) -> str:
        """Returns the path of a version's changes, relative to the table's prefix.

        `number`: the number of the version's manifest.
        """
        return f"_s3notify/changes/{number}.parquet"

    @property
    def vectors(self) -> str:
        """Prefix of the files of deletion vectors (`vectors.path_of`)."""
        return f"{self.own}vector/"

    @property
    def staged(self) -> str:
        """Prefix of staged versions. With leases, each version is staged before it is created."""
        return f"{self.own}staged/"

    def staged_version(self, number: int) -> str:
        """Returns the key of a staged version."""
        return f"{self.staged}{number}.json"

    @property
    def cuts(self) -> str:
        """Prefix of vacuum's marks. Vacuum writes a mark for a checkpoint when it first finds the checkpoint in
        `_last_checkpoint`.
        """
        return f"{self.own}cut/"

    def cut(self, version: int) -> str:
        """Returns the key of the mark for the checkpoint of this version."""
        return f"{self.cuts}{version:020d}"
