"""The changes that a version makes to the states of objects. The change feed is made from these changes. Pure.

A change has the labels of the object's rows before the change, and the labels after it. The earlier rows are in packs
of the previous version, and the new rows are in packs of the version itself. So the feed finds inserted and deleted
rows by these labels. The feed does not need to compare the packs that the version rewrote.

The manifest of a version has the version's changes if there are few. Many changes are in a Parquet file that the
manifest names.
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
"""The reason why a state changed. `expired`: the bucket's lifecycle deleted the object, and its rows stay.
`backfilled`: the object was read again although it had not changed. `continued`: a further part of the object was read.
`quarantined`: the object could not be read."""

REASONS: Final[tuple[Reason, ...]] = get_args(Reason)

GROUP_ROWS: Final = 16 << 10
"""The number of changes in one row group of the file. A row group is held in memory as a whole."""

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
    """The ETag of the object version that was read, and the first and last label under which its rows were planned."""

    etag: str
    since: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """The change of one object. `old` is None if the object had no state before. `new` is None if the object has no
    state afterwards.

    For an erased object, `key` is the `key_hash` of its key, and `etag` is empty.
    """

    slot: Slot
    key: str
    reason: Reason
    old: Labels | None = None
    new: Labels | None = None

    def row(self) -> list[Any]:
        """Returns the change in the manifest's format: a list."""
        return [self.slot, self.key, REASONS.index(self.reason), _row(self.old), _row(self.new)]

    @classmethod
    def of(cls, row: Sequence[Any]) -> "StateChange":
        """Decodes the result of `row`. Raises `ValueError`, `TypeError` or `IndexError` for any other list."""
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
    """Yields the change of each object. A pair has the object's new state and its earlier state.

    Changes that no reader can see are left out.
    """
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
    """Returns the change of an erased object. The change keeps neither the key nor the ETag."""
    old = Labels(etag="", since=before.since, until=before.until)
    return StateChange(slot=slot, key=key_hash(key), reason="erased", old=old)


def key_hash(key: str) -> str:
    """Returns the hash of a key. A person who knows the key can compute this hash, and can find the key among the
    erased keys.
    """
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
    """Returns true if the changes are few enough for the manifest itself. Pure."""
    if len(changes) > CHANGES_INLINE:
        return False
    return len(json.dumps([each.row() for each in changes], ensure_ascii=False)) <= CHANGES_INLINE_BYTES


def encode(changes: Sequence[StateChange]) -> bytes:
    """Returns the body of a Parquet file with these changes."""
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
    """Yields the changes in these rows of a file. Raises `KeyError` or `TypeError` if the rows have another format."""
    for row in rows.to_pylist():
        old, new = (None if row[name] is None else Labels(**row[name]) for name in ("old", "new"))
        yield StateChange(slot=Slot(row["slot"]), key=row["key"], reason=row["reason"], old=old, new=new)
