"""The changes of a version to the states of objects, from which a change feed is made. Pure.

Labels say in which packs the rows of an object are: those of before are in the version before, those of now in this
one. So a feed reads the rows that came and went by the states, not by comparing packs that were rewritten.

Few changes stand in the manifest of their version, more in a Parquet file that the manifest names.
"""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from s3notify_platform.kernel.limits import CHANGES_INLINE, CHANGES_INLINE_BYTES
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState

Reason = Literal[
    "new", "overwritten", "deleted", "expired", "backfilled", "continued", "quarantined", "erased"
]
"""Why a state changed. `expired`: its object has left by the bucket's lifecycle, its rows stay. `backfilled`: read
again, although it had not changed. `continued`: read further. `quarantined`: as a whole."""

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)

GROUP_ROWS: Final = 16 << 10
"""Changes of a row group of a file, which are in memory together."""

_LABELS: Final = (("etag", pa.string()), ("since", pa.int64()), ("until", pa.int64()))
SCHEMA: Final = pa.schema(
    [
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("old", pa.struct(_LABELS)),
        pa.field("new", pa.struct(_LABELS)),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """The ETag that an object was read as, and between which labels its rows were planned."""

    etag: str
    since: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """The change of one object. `old`: None: it had no state; `new`: None: it has none any more.

    Of an erased object, `key` is `key_hash` of its key, and there is no ETag.
    """

    slot: Slot
    key: str
    reason: Reason
    old: Labels | None = None
    new: Labels | None = None

    def row(self) -> list[Any]:
        """As the manifest has it."""
        return [self.slot, self.key, REASONS.index(self.reason), _row(self.old), _row(self.new)]

    @classmethod
    def of(cls, row: Sequence[Any]) -> "StateChange":
        """Inverse of `row`. `ValueError`, `TypeError`, `IndexError` for anything else."""
        slot, key, reason, old, new = row
        return cls(slot=Slot(slot), key=key, reason=REASONS[reason], old=_labels(old), new=_labels(new))


def _row(labels: Labels | None) -> list[Any] | None:
    return None if labels is None else [labels.etag, labels.since, labels.until]


def _labels(row: Sequence[Any] | None) -> Labels | None:
    if row is None:
        return None
    etag, since, until = row
    return Labels(etag=etag, since=since, until=until)


def state_changes(
    slot: Slot, pairs: Iterable[tuple[ObjectState, ObjectState | None]]
) -> Iterator[StateChange]:
    """The changes that lead to these states, each with the one before. Marks that no reader sees are left out."""
    for state, before in pairs:
        if (before is None and state.gone) or (before is not None and _seen(state) == _seen(before)):
            continue
        yield StateChange(
            slot=slot,
            key=state.key,
            reason=_reason(state, before),
            old=None if before is None else _of(before),
            new=None if state.gone else _of(state),
        )


def erased(slot: Slot, key: str, before: ObjectState) -> StateChange:
    """The change of an object of which nothing may be kept."""
    old = Labels(etag="", since=before.since, until=before.until)
    return StateChange(slot=slot, key=key_hash(key), reason="erased", old=old)


def key_hash(key: str) -> str:
    """By which someone who has a key finds that it was erased."""
    return sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def _of(state: ObjectState) -> Labels:
    return Labels(etag=state.etag, since=state.since, until=state.until)


def _seen(state: ObjectState) -> tuple[object, ...]:
    return state.gone, state.etag, state.since, state.until, state.expired, state.failing


def _reason(state: ObjectState, before: ObjectState | None) -> Reason:
    if state.gone:
        return "deleted"
    if state.failing:
        return "quarantined"
    if before is None:
        return "new"
    if state.expired and not before.expired:
        return "expired"
    if state.etag != before.etag:
        return "overwritten"
    return "continued" if state.since == before.since else "backfilled"


def fits_inline(changes: Sequence[StateChange]) -> bool:
    """Whether a manifest holds them itself. Pure."""
    if len(changes) > CHANGES_INLINE:
        return False
    return len(json.dumps([each.row() for each in changes], ensure_ascii=False)) <= CHANGES_INLINE_BYTES


def encode(changes: Sequence[StateChange]) -> bytes:
    """A file of changes."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SCHEMA, compression="zstd") as writer:
        for start in range(0, len(changes), GROUP_ROWS):
            some = changes[start : start + GROUP_ROWS]
            rows = [
                {
                    "slot": each.slot,
                    "key": each.key,
                    "reason": each.reason,
                    "old": _fields(each.old),
                    "new": _fields(each.new),
                }
                for each in some
            ]
            writer.write_table(pa.Table.from_pylist(rows, SCHEMA), row_group_size=GROUP_ROWS)
    return sink.getvalue()


def _fields(labels: Labels | None) -> dict[str, Any] | None:
    if labels is None:
        return None
    return {"etag": labels.etag, "since": labels.since, "until": labels.until}


def decode(rows: pa.RecordBatch) -> Iterator[StateChange]:
    """The changes of some rows of a file. `KeyError`, `TypeError` for anything else."""
    for row in rows.to_pylist():
        old, new = (None if row[name] is None else Labels(**row[name]) for name in ("old", "new"))
        yield StateChange(slot=Slot(row["slot"]), key=row["key"], reason=row["reason"], old=old, new=new)
