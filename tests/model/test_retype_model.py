"""A table whose column changes its type again and again, compared with plain values.

Batches, merges, kills and rollbacks come in between. The model has the current value of each row, and whether its
object must be read again.
"""

from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.maintenance.compaction import compact
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed, NothingLeft
from s3notify_platform.table.retype import retyped
from tests.support.feed_copy import FeedCopy
from tests.support.log_tables import beaten
from tests.support.retype_site import RetypeSite, wanted

KINDS = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "decimal": pa.decimal128(12, 2),
    "wide": pa.decimal128(38, 4),
    "string": pa.string(),
}
BITS = {"int": 31, "bigint": 63}
SCALES = {"decimal": 2, "wide": 4}


def parsed(value: int | None, kind: str) -> Any:
    """The value that a parser makes of a number; None if the number does not fit the type."""
    if value is None or kind == "string":
        return None if value is None else str(value)
    if kind in BITS:
        return value if -(2 ** BITS[kind]) <= value < 2 ** BITS[kind] else None
    limit = 10 ** (KINDS[kind].precision - KINDS[kind].scale)
    return Decimal(value) if -limit < value < limit else None


def shown(value: Any, old: str, new: str) -> Any:
    """The value of a row after its column got another type, as long as the row's object is not read again."""
    if value is None:
        return None
    if new == "string":
        return str(value) if old in BITS else f"{value:.{SCALES[old]}f}"
    return parsed(int(Decimal(value)), new)


@dataclass
class Model:
    """The numbers in each object, the values of the object's rows, and the objects that must be read again."""

    kind: str = "int"
    numbers: dict[str, list[int | None]] = field(default_factory=dict)
    rows: dict[str, list[Any]] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)

    def put(self, key: str, numbers: list[int | None]) -> None:
        self.numbers[key] = numbers
        self.rows[key] = [parsed(each, self.kind) for each in numbers]
        self.again.discard(key)

    def retype(self, kind: str) -> None:
        if kind == self.kind:
            return
        for key, values in self.rows.items():
            after = [shown(each, self.kind, kind) for each in values]
            present = any(each is not None for each in values)
            lost = any(a is not None and b is None for a, b in zip(values, after, strict=True))
            if lost or (self.kind == "string" and present):
                self.again.add(key)
            self.rows[key] = after
        self.kind = kind


@pytest.mark.parametrize("seed", range(12))
def test_any_sequence_of_types_keeps_values(seed: int) -> None:
    dice = Random(seed)
    store = MemoryObjectStore()
    vectors = bool(seed % 2)
    model, kept = Model(), {}

    def process() -> RetypeSite:
        return RetypeSite(store=store, vectors=vectors)

    def put(key: str, numbers: list[int | None]) -> None:
        model.put(key, numbers)
        done = process().commit(key, {"n": KINDS[model.kind]}, n=model.rows[key])
        assert isinstance(done, Committed)

    def drawn() -> list[int | None]:
        numbers = (1, -7, 10**9, 2**31, 10**11, 2**62, -(2**40), None)
        return [dice.choice(numbers) for _ in range(dice.randrange(1, 30))]

    def key() -> str:
        return f"{dice.choice('abcde')}{dice.randrange(4)}"

    put("a0", drawn())
    copies: list[FeedCopy] = []
    for _ in range(40):
        site = process()
        match dice.choice(["put", "put", "put", "retype", "merge", "read", "back", "late"]):
            case "put":
                put(key(), drawn())
            case "retype":
                others = [lambda: put(key(), drawn())] * dice.randrange(3)
                new = dice.choice(sorted(KINDS))
                done, _ = retyped(beaten(site.table, others), site.newest(), wanted(n=KINDS[new]))
                assert isinstance(done, NothingLeft if new == model.kind else Committed)
                if new != model.kind:
                    model.retype(new)
            case "merge":
                compact(site.table)
            case "read":
                for one in sorted(model.again):
                    put(one, model.numbers[one])
            case "back" if kept:
                version = dice.choice(sorted(kept))
                roll_back(site.table, version)
                kind, numbers, rows, again = kept[version]
                model = Model(kind=kind, numbers={**numbers}, rows={**rows}, again={*again})
            case "late":
                # A round that was planned with the old type is committed after the type has changed.
                late = key()
                planned = site.planned(late, {"n": KINDS[model.kind]}, n=[parsed(1, model.kind)])
                before, new = model.kind, dice.choice(sorted(KINDS))
                other = process()
                retyped(other.table, other.newest(), wanted(n=KINDS[new]))
                model.retype(new)
                done = site.table.commit(planned, planned.base)
                if isinstance(done, Committed):
                    assert before == new
                    model.put(late, [1])
        found = process()
        assert found.kinds() == {"n": arrow_name(model.kind)}
        assert {name: [row["n"] for row in rows] for name, rows in found.rows().items()} == model.rows
        assert {name for name, state in found.states().items() if state.again} == model.again
        if dice.random() < 0.15:
            copies.append(FeedCopy(lambda: process().table))
        assert not any(copy.differences() for copy in copies if dice.random() < 0.3)
        kept[found.newest().version] = (model.kind, {**model.numbers}, {**model.rows}, {*model.again})


def arrow_name(kind: str) -> str:
    return {
        "int": "integer",
        "bigint": "long",
        "decimal": "decimal(12,2)",
        "wide": "decimal(38,4)",
        "string": "string",
    }[kind]
