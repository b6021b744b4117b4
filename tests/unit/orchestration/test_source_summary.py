"""The asset `{source}_summary` shows the state of a source's slots."""

import pytest

from s3notify_platform.engine.batch.batches import BatchPayload, Failing, OpenBatch, SensorState
from s3notify_platform.explain.slot_map import LEGEND
from s3notify_platform.explain.source_status import SourceLook
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.orchestration.source_summary import SourceNow
from s3notify_platform.protocols.ack_chain import AckChains
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support.servers import S3Server
from tests.support.slot_rounds import Body, SlotRounds
from tests.support.sources import source_of


@pytest.mark.server
def test_the_summary_and_status_show_the_same_numbers(ministack: S3Server) -> None:
    """The source has a slot with rows and rejects, a stale slot, a slot in flight and a failing slot. The summary and
    `status` must show the same map of these slots, too.
    """
    source = source_of(
        bucket=ministack.config(ministack.make_bucket()),
        name="orders",
        prefix="raw/",
        slots=16,
        commit="native",
    )
    store = S3ObjectStore(source.location.platform)
    for slot, code in ((3, "new"), (5, "old")):
        writer = SlotRounds(store=store, source=source, slot=Slot(slot), code_version=code)
        writer.run({f"raw/{slot}": Body(etag="1", rows=slot, rejects=2)})
    AckChains(source.location.records()).open_batch("b", ["7"], payload=BatchPayload(slots=(7,)).dumps())
    batch = OpenBatch(id="b", chain="", slots=(7,), parts=1, opened_ms=1)
    failing = {9: Failing(attempts=1, not_before_ms=0, reason="AccessDenied", group=9)}
    state = SensorState(epoch="e", open=(batch,), failing=failing)
    codes = {"orders": "new"}
    status = SourceLook(source, lambda: state, codes=codes).read()
    snapshot = source.open_table().snapshot
    assert snapshot is not None
    summary = SourceNow(source=source, snapshot=snapshot, state=state, codes=codes).metadata()
    assert status.map is not None
    shown = {
        "dagster/row_count": status.rows,
        "table_version": status.version,
        "table_files": status.files,
        "table_bytes": status.bytes,
        "slots_committed": status.committed_slots,
        "slots_in_flight": len(status.map.in_flight),
        "slots_failing": len(status.map.failing),
        "slots_stale_orders": status.stale["orders"],
        "quarantine_rejected_records": status.rejects,
        "quarantine_failing_objects": status.failing_objects,
    }
    assert {name: summary[name] for name in shown} == shown
    assert (status.rows, status.rejects, status.stale["orders"]) == (8, 4, 1)
    assert (status.map.in_flight, status.map.failing) == ({7}, {9})
    assert [row.data for row in summary["slot_map"].records] == [*status.map.table()]
    assert {row.data["sign"] for row in summary["slot_map_legend"].records} == {*LEGEND}
