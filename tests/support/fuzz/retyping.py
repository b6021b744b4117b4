"""Changes the types of columns while all other processes continue. The module also has the model of the values that a
JSON row may have in these columns.

After all work is done, a row exists if the types of its columns can hold the values in its object. Until then, a value
that an earlier type could not hold may be null. A new read of the object restores the value.
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
"""The possible types of each column, beginning with its initial type. The first column has JSON numbers. The second
column, `amount`, has JSON strings in the objects."""

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
"""The values of one row, by the columns of `KINDS`."""


def plain(value: Any) -> Value:
    """A value of a row or of an object, independent of its type: a number and its text become equal."""
    try:
        return None if value is None else Decimal(value)
    except InvalidOperation:
        return str(value)


def values_of(row: Mapping[str, Any]) -> Values:
    """The values of a row, or of a record in an object, in the columns whose types change."""
    return tuple(plain(row.get(name)) for name in KINDS)


def fits(value: Value, kind: str) -> bool:
    """True if a column of this type can hold the value that is in the object."""
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
    """True if an object with these values has a row after it was read with these types."""
    return all(fits(value, kinds[name]) for name, value in zip(KINDS, values, strict=True))


def is_wide(values: Values) -> bool:
    """True if a column has a possible type that cannot hold the row's value. In this case, the row may be missing for
    some time, or have nulls.
    """
    return not all(
        fits(value, kind) for name, value in zip(KINDS, values, strict=True) for kind in KINDS[name]
    )


def may_be(shown: Values, values: Values, kinds: Mapping[str, str]) -> bool:
    """True if a row may have the values `shown` at some time. `values`: the values of the row in its object.

    `kinds`: the types of the columns.
    """

    def may(name: str, found: Value, value: Value) -> bool:
        if found is None:
            return value is None or not all(fits(value, kind) for kind in KINDS[name])
        return found == value and fits(value, kinds[name])

    return all(map(may, KINDS, shown, values))


def mixture(table: LogTable, found: Snapshot) -> str:
    """The name of a file of this version with a column whose type differs from the version's schema; "" if there is
    none.
    """
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
    """Gives one column after another a new type by `s3notify schema set`, which is sometimes killed.

    A command that was killed or has failed is repeated until it succeeds. `declare`: changes the declared types of the
    source, before or after the command.
    """

    dice: random.Random
    command: Sequence[str]
    """The beginning of the command: `s3notify schema set orders`, with the options that say where the table is."""
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
        """Changes types in a thread, until `stop`."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stops the thread after its present change has succeeded, or has failed (`wrong`)."""
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
        """Gives one column another type."""
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
                    # Half of the attempts are killed after a random time, if they have not ended before.
                    process.wait(self.dice.uniform(1, 6) if self.dice.random() < 0.5 else 300)
                except subprocess.TimeoutExpired:
                    process.kill()
                    self.killed += 1
            if process.returncode == 0:
                return
            time.sleep(1)
        raise AssertionError(f"{command}: {self.log.read_text()[-1500:]}")
