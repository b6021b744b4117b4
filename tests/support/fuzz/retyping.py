"""Columns that get other types while everything else goes on; and the model of what a row of JSON is in them.

A value of an object is in its row if its column's type has it, else the row is not there, once things have settled.
Until then it may be null: an earlier type may not have had it, and its object is still to be read again.
"""

import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from s3notify_platform.table.arrow_schema import arrow_schema
from s3notify_platform.table.log_table import LogTable
from s3notify_platform.table.snapshot import Snapshot

KINDS: Final = {
    "order_id": ("bigint", "int", "decimal(20,2)"),
    "amount": ("decimal(12,2)", "decimal(20,4)", "string"),
}
"""The types of the columns that change, the first ones first. JSON's numbers are in one, its strings in the other."""

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "decimal(12,2)": pa.decimal128(12, 2),
    "decimal(20,2)": pa.decimal128(20, 2),
    "decimal(20,4)": pa.decimal128(20, 4),
    "string": pa.string(),
}

Value = Decimal | str | None
Values = tuple[Value, ...]
"""Of one row, by the columns of `KINDS`."""


def plain(value: Any) -> Value:
    """A value of a row or of an object, whatever its type: numbers and texts of them are the number."""
    try:
        return None if value is None else Decimal(value)
    except InvalidOperation:
        return str(value)


def values_of(row: Mapping[str, Any]) -> Values:
    """The values of a row, or of an object's record, in the columns that change."""
    return tuple(plain(row.get(name)) for name in KINDS)


def fits(value: Value, kind: str) -> bool:
    """Whether a column of this type has the value, if it is read from its object."""
    if value is None or kind == "string":
        return True
    if isinstance(value, str):
        return False
    try:
        pa.scalar(value).cast(_ARROW[kind])
    except pa.ArrowInvalid:
        return False
    return True


def is_whole(values: Values, kinds: Mapping[str, str]) -> bool:
    """Whether a row with these values is there, once its object has been read by these types."""
    return all(fits(value, kinds[name]) for name, value in zip(KINDS, values, strict=True))


def is_wide(values: Values) -> bool:
    """Whether one of the types has not all of the values: such a row may be missing, or have nulls, for a while."""
    return not all(
        fits(value, kind) for name, value in zip(KINDS, values, strict=True) for kind in KINDS[name]
    )


def may_be(shown: Values, values: Values, kinds: Mapping[str, str]) -> bool:
    """Whether a row may show this at any time, if its object has `values`, and the columns these types."""

    def may(name: str, found: Value, value: Value) -> bool:
        if found is None:
            return value is None or not all(fits(value, kind) for kind in KINDS[name])
        return found == value and fits(value, kinds[name])

    return all(map(may, KINDS, shown, values))


def mixture(table: LogTable, found: Snapshot) -> str:
    """A file of this version with other types than the version says; empty if there is none."""
    columns = arrow_schema(found.metadata.schema)
    for pack in found.packs.values():
        for each in table.data.opened(pack).schema:
            if each.type != columns.field(each.name).type:
                return f"version {found.version}: {pack.path} has {each}, and the table {columns.field(each.name)}"
    return ""


def kinds_of(found: Snapshot) -> dict[str, str]:
    """The types of the columns that change."""
    columns, names = arrow_schema(found.metadata.schema), {kind: name for name, kind in _ARROW.items()}
    return {name: names[columns.field(name).type] for name in KINDS if name in columns.names}


@dataclass
class Retyping:
    """Gives one column after another some other type, by `s3notify schema set`, which is killed now and then.

    A command that was killed, or has failed, is repeated until it is through. `declare`: has the source declare these
    types, which is done before or after.
    """

    dice: random.Random
    command: Sequence[str]
    """Up to the options of the place."""
    environment: Mapping[str, str]
    log: Path
    say: Callable[[str], None]
    pause: tuple[float, float]
    declare: Callable[[Mapping[str, str]], None] = lambda _: None
    kinds: dict[str, str] = field(default_factory=lambda: {name: kinds[0] for name, kinds in KINDS.items()})
    done: int = 0
    killed: int = 0
    wrong: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Change types in a thread, until `stop`."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Return when the change that was begun is made, or could not be (`wrong`)."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(self.dice.uniform(*self.pause)):
                self.once()
        except Exception as error:
            self.wrong.append(f"{type(error).__name__}: {error}")

    def once(self) -> None:
        """One column gets another type."""
        column = self.dice.choice(sorted(KINDS))
        kind = self.dice.choice([each for each in KINDS[column] if each != self.kinds[column]])
        again = ["--read-again"] if self.dice.random() < 0.3 else []
        kinds = {**self.kinds, column: kind}
        first = self.dice.random() < 0.5
        if first:
            self.declare(kinds)
        self._until_done([f"{column} {kind}", *again])
        self.kinds = kinds
        if not first:
            self.declare(kinds)
        self.done += 1
        self.say(f"{column} is {kind} {' '.join(again)}")

    def _until_done(self, arguments: Sequence[str]) -> None:
        ends = time.monotonic() + 600
        command = [*self.command, *arguments, "--yes"]
        while time.monotonic() < ends:
            with self.log.open("ab") as log, subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, **self.environment}
            ) as process:  # fmt: skip
                try:
                    # Half of the tries die, at any time of them.
                    process.wait(self.dice.uniform(1, 6) if self.dice.random() < 0.5 else 300)
                except subprocess.TimeoutExpired:
                    process.kill()
                    self.killed += 1
            if process.returncode == 0:
                return
            time.sleep(1)
        raise AssertionError(f"{command}: {self.log.read_text()[-1500:]}")
