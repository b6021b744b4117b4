"""The size of a manifest: the manifest of the largest tables is accepted, and a larger manifest is refused."""

import json
from dataclasses import fields, replace

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import (
    CHANGES_INLINE,
    CHANGES_INLINE_BYTES,
    MANIFEST_BYTES,
    MAX_KEY_BYTES,
    STATES_INLINE,
    STATES_INLINE_BYTES,
)
from s3notify_platform.kernel.slots import SLOT_COUNT, Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.delta.actions import Add
from s3notify_platform.table.manifest import Manifest, SlotFacts
from s3notify_platform.table.proposal import Proposal
from s3notify_platform.table.state_changes import Labels, StateChange, fits_inline
from s3notify_platform.table.states.state_columns import state_row
from s3notify_platform.table.states.state_file import StateFile
from s3notify_platform.table.states.state_levels import StateSet
from tests.support.log_tables import LAYOUT, Table

COUNTS = [each.name for each in fields(SlotFacts) if each.type is int]
LONG = 10**18
ETAG = "e" * 32


def full_slots(count: int, codes: int) -> dict[Slot, SlotFacts]:
    """All slots of a source's table, with this count in each field, except `transformed` (1) and `source` (0)."""
    counts = dict.fromkeys(COUNTS, count) | {"transformed": 1, "source": 0}
    return {
        Slot(slot): SlotFacts(**counts, signal="0123456789ab", code_version=f"{slot % codes:064d}")
        for slot in range(SLOT_COUNT)
    }


def full_inline() -> dict[Slot, dict[str, ObjectState]]:
    """As many states as a manifest may have."""
    inline, size = {}, 0
    for slot in map(Slot, range(STATES_INLINE)):
        state = ObjectState(
            key=f"orders/{slot:040d}", etag=ETAG, size=10**9, rows=10**5, since=10**6, until=10**6
        )
        size += len(json.dumps(state_row(slot, state), separators=(",", ":"))) + 1
        if size > STATES_INLINE_BYTES:
            break
        inline[slot] = {state.key: state}
    assert len(inline) > 100
    return inline


def full_changes() -> tuple[StateChange, ...]:
    """As many changes as a manifest may have."""
    labels = Labels(etag=ETAG, since=10**6, until=10**6)
    changes = tuple(
        StateChange(slot=Slot(n), key=f"orders/{n:0200d}", reason="overwritten", old=labels, new=labels)
        for n in range(CHANGES_INLINE)
    )
    assert fits_inline(changes)
    assert not fits_inline((*changes, changes[0]))
    assert sum(len(json.dumps(each.row())) for each in changes) > CHANGES_INLINE_BYTES * 0.8
    return changes


def reject(key: str) -> Add:
    path = LAYOUT.reject_path("r" * 32)
    return Add(path=path, size=1 << 26, rows=10**6, modified_ms=10**13, slots=(0, 999), keys=(key, key))


def manifest(
    *, slots: dict[Slot, SlotFacts], files: int = 0, rejects: int = 0, key_bytes: int = 60
) -> Manifest:
    """A manifest with full inline parts, and with this number of state files and packs of rejects."""
    key = "k" * key_bytes
    state_files = [
        StateFile(
            name=f"{n:032d}",
            level=2,
            states=10**6,
            bytes=64 << 20,
            tail=10**5,
            check=2**32 - 1,
            first=(Slot(n), key),
            end=(Slot(n + 1), key),
        )
        for n in range(files)
    ]
    return Manifest(
        table="t" * 16,
        version=10**6,
        number=2**63 - 1,
        parent=2**63 - 1,
        slots=slots,
        states=StateSet(inline=full_inline(), files=tuple(state_files)),
        rejects=tuple(reject(key) for _ in range(rejects)),
        changes=full_changes(),
    )


def usual_slots() -> dict[Slot, SlotFacts]:
    """All slots of a table of 10 million objects, each with up to 10 rows. No object fails, and no code has changed."""
    facts = SlotFacts(
        generation=999_999, objects=9_999, rows=99_999, signal="0123456789ab", code_version="1" * 64
    )
    return dict.fromkeys(map(Slot, range(SLOT_COUNT)), facts)


FILES = 67
"""The number of state files of 10 million objects (`tests/benchmarks/looking_up.py`)."""


def test_manifest_of_a_usual_batch_has_at_most_64_kb() -> None:
    """Each commit writes a manifest, so a larger manifest would make each commit slower. If a batch has too
    many objects for the inline parts, its states and its changes are in files.
    """
    found = manifest(slots=usual_slots(), files=FILES)
    found = replace(found, changes=(), states=replace(found.states, inline={}))
    assert len(found.dumps()) < 64 << 10


def test_manifest_with_full_inline_parts_has_at_most_84_kb() -> None:
    """Deviates from the budget of 64 KB: after many small batches, the inline parts are full, which adds up to
    `STATES_INLINE_BYTES` + `CHANGES_INLINE_BYTES`. Smaller inline parts would cost more requests, since states and
    changes would more often be written to files.
    """
    assert 80_000 < len(manifest(slots=usual_slots(), files=FILES).dumps()) < 84_000


def test_manifest_with_all_counts_of_1000_slots_has_at_most_115_kb() -> None:
    """Each commit writes a manifest, so a larger manifest would make each commit slower. Only a table with failing
    objects, pending objects, rejects, a backfill and a change of code in all slots has all columns of counts, so this
    manifest may exceed the budget of 64 KB.
    """
    assert 110_000 < len(manifest(slots=full_slots(99_999, 3)).dumps()) < 115_000


def test_manifest_of_the_largest_tables_is_within_the_limit() -> None:
    """Otherwise a table with the longest keys, the longest counts and another code version in each slot could no longer
    be written, and a compaction would not help.
    """
    found = manifest(slots=full_slots(LONG, SLOT_COUNT), files=110, rejects=40, key_bytes=MAX_KEY_BYTES)
    found = replace(found, erased=dict.fromkeys(map(Slot, range(SLOT_COUNT)), LONG))
    body = found.dumps()
    assert len(body) < MANIFEST_BYTES
    assert Manifest.loads(body, where="m") == found


def test_too_large_manifest_is_refused_before_anything_is_written() -> None:
    store = MemoryObjectStore()
    table = Table(store=store)
    base = table.opened()
    before = dict(store._objects)
    rejects = tuple(reject("k" * MAX_KEY_BYTES) for _ in range(MANIFEST_BYTES // (2 * MAX_KEY_BYTES)))

    class Many:
        def onto(self, base: object) -> Proposal:
            del base
            return Proposal(rejects=rejects, files={LAYOUT.file("data/new.parquet"): b"x"})

    with pytest.raises(UsageError, match=rf"at most {MANIFEST_BYTES}: run `s3notify table compact`"):
        table.committer.commit(Many(), base)
    assert store._objects == before
    assert table.opened().version == base.version
