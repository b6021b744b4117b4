"""The sensor's state, as stored in its cursor."""

from dataclasses import replace

import pytest

from s3notify_platform.engine.batch.batches import Failing, OpenBatch, SensorState
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_REASON
from s3notify_platform.protocols.keyspace import WatcherState


def test_the_cursor_round_trips_and_stays_small() -> None:
    """If the cursor lost a failing slot, no later tick would request the slot again until the slot changes.
    If the cursor repeated the reason for each slot, 500 failing slots with the same reason would add 150 KB.
    """
    reason = "x" * MAX_REASON
    failing = {slot: Failing(attempts=1, not_before_ms=5, reason=reason, group=0) for slot in range(500)}
    state = SensorState(
        epoch="ab",
        next_batch=7,
        enumerated="life 0",
        listed_ms=3,
        watch=WatcherState(),
        open=(
            OpenBatch(
                id="s-ab-6",
                chain="e" * 32,
                slots=tuple(range(500, 1000)),
                parts=2,
                opened_ms=9,
                progress={"run": (3, 11)},
            ),
        ),
        failing=failing,
    )
    assert SensorState.loads(state.dumps()) == state
    assert len(replace(state, open=(), failing={}).dumps()) < 12_000
    assert len(state.dumps()) < 12_000 + 5 * 1000 + 500
    apart = {slot: replace(item, group=slot) for slot, item in failing.items()}
    assert SensorState.loads(replace(state, failing=apart).dumps()).failing == apart
    assert len(replace(state, failing=apart).dumps()) < 12_000 + 100 * 500 + 5 * 500 + 500


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"epoch": 1}', "7", '{"watch": "x"}'])
def test_a_cursor_of_another_format_is_refused_with_the_remedy(text: str) -> None:
    """A person may have typed the cursor into the UI. Without the remedy in the error, this person would not know how
    to make the sensor work again.
    """
    with pytest.raises(CorruptError, match="reset the cursor in the UI"):
        SensorState.loads(text)
