"""A refusal of withdrawals ends only if a listing of all slots shows that few objects are missing."""

from types import SimpleNamespace

import pytest

from s3notify_platform.engine.values.slot_plan import Plan, SlotPlan
from s3notify_platform.engine.values.withdrawal_guard import guard_withdrawals
from s3notify_platform.protocols.source_enumerator import SlotChanges
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.known import Known, KnownRecord
from s3notify_platform.table.manifest import SlotFacts

SOURCE = SimpleNamespace(
    input=SimpleNamespace(prefix="raw/", withdraw_share=0.5, bucket=SimpleNamespace(bucket="b")),
    location=SimpleNamespace(slots=4, command=lambda name: name),
)


@pytest.mark.parametrize(("slots", "listed", "ends"), [(4, True, True), (3, True, False), (4, False, False)])
def test_a_refusal_ends_only_by_a_listing_of_all_slots(slots, listed, ends):
    """Otherwise a batch that reads the queue would end the refusal, and the next retry would withdraw the objects."""
    record = KnownRecord(records=ObjectRecordStore(MemoryObjectStore(), ""), key="orders", where="b")
    known, _ = record.change(lambda _: Known(table="t", refused=True))
    snapshot = SimpleNamespace(known=known, manifest=SimpleNamespace(slot=lambda _: SlotFacts(generation=1)))
    changes = [SlotChanges(slot=slot, read=(), gone=(), complete=True) for slot in range(slots)]
    found = Plan(slots={each.slot: SlotPlan(changes=each, objects=5, held=5) for each in changes})
    assert not guard_withdrawals(found, snapshot, record, SOURCE, set(), listed=listed, now_ms=0)
    assert record.read()[0].refused != ends
