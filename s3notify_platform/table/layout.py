"""Names of the objects of one table. Pure."""

import re
from dataclasses import dataclass
from typing import NewType

from s3notify_platform.errors import CorruptError, UsageError
from s3notify_platform.slots import Slot

Generation = NewType("Generation", int)
"""Counts a slot's commits from 1; 0 stands for "never committed"."""

GENERATION_DIGITS = 19
GENERATION_LIMIT = 10**GENERATION_DIGITS - 1

LINEAGE = ("_key", "_etag", "_offset")
"""Columns of every row: the object version that it is from, and its place in it (bytes; row number for Parquet)."""


def inverted(generation: int) -> str:
    """Fixed-width decimal that sorts newest first, so that a head is the first key of a LIST."""
    return f"{GENERATION_LIMIT - generation:0{GENERATION_DIGITS}d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """Keys of one table below `prefix`, which ends in `/`."""

    prefix: str

    def __post_init__(self) -> None:
        if not self.prefix.endswith("/") or self.prefix.startswith("/") or "//" in self.prefix:
            raise UsageError(
                f"table prefix {self.prefix!r}: must end in '/', not start with it, nor contain '//'"
            )

    @property
    def id(self) -> str:
        """Key of the object with the table's id (`known`)."""
        return f"{self.prefix}table.json"

    @property
    def all_commits(self) -> str:
        """Prefix of all commit objects."""
        return f"{self.prefix}commits/"

    def commits(self, slot: Slot) -> str:
        """Prefix of a slot's commit objects."""
        return f"{self.all_commits}{slot}/"

    def commit(self, slot: Slot, generation: int) -> str:
        """Key of one commit object."""
        return f"{self.commits(slot)}{inverted(generation)}.json"

    def state(self, slot: Slot, name: str) -> str:
        """Key of a state file."""
        return f"{self.prefix}state/{slot}/{name}.parquet"

    def data(self, slot: Slot, name: str) -> str:
        """Key of a data file."""
        return f"{self.prefix}data/slot={slot}/{name}.parquet"

    def quarantine(self, slot: Slot, name: str) -> str:
        """Key of a file of rejects."""
        return f"{self.prefix}quarantine/slot={slot}/{name}.parquet"

    @property
    def view(self) -> str:
        """Place of the Delta view, without a `/` at its end: the directory of the data files and of the log."""
        return f"{self.prefix}data"

    @property
    def log(self) -> str:
        """Prefix of the view's log."""
        return f"{self.view}/_delta_log/"

    def log_version(self, version: int) -> str:
        """Key of one version of the log."""
        return f"{self.log}{version:020d}.json"

    def log_checkpoint(self, version: int) -> str:
        """Key of the log's checkpoint at a version."""
        return f"{self.log}{version:020d}.checkpoint.parquet"

    @property
    def log_hint(self) -> str:
        """Key of the object that names a recent checkpoint."""
        return f"{self.log}_last_checkpoint"

    @property
    def schemas(self) -> str:
        """Prefix of the schema objects."""
        return f"{self.prefix}schema/"

    def schema(self, generation: int) -> str:
        """Key of one schema object."""
        return f"{self.schemas}{inverted(generation)}.json"


def generation_of(key: str) -> Generation:
    """The generation in a commit or schema key; `CorruptError` for a foreign key."""
    match = re.fullmatch(rf".*/(\d{{{GENERATION_DIGITS}}})\.json", key)
    if match is None:
        raise CorruptError(f"{key!r} is not a commit or schema object; remove it from the table")
    return Generation(GENERATION_LIMIT - int(match[1]))
