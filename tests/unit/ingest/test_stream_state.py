"""What a stream's checkpoint knows of its state on the bucket."""

from dataclasses import replace

import pytest

from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.errors import CorruptError
from s3notify_platform.ingest.source import Source
from s3notify_platform.ingest.stream_state import Offset, SlotWork, StreamState
from s3notify_platform.slots import Slot
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import SlotCommit
from s3notify_platform.table.layout import Generation


def test_commits_that_are_missing_from_the_state() -> None:
    """The newest of a slot, or all: refused, since rows would be given again. A slot that was never read has none."""
    source = Source.of(name="orders", bucket=S3Config(bucket="b"), prefix="raw/", slots=8, commit="native")
    state = StreamState(source=source, stream="s", store=MemoryObjectStore(), clock=SYSTEM_CLOCK)
    work = [
        SlotWork(slot=Slot(2), generation=Generation(1)),
        SlotWork(slot=Slot(5), generation=Generation(0)),
    ]
    offset = Offset(digests=bytes(64), number=2)
    offset = replace(offset, heads=offset.planned(work))
    assert offset.heads == (0, 0, 2, 0, 0, 1)
    assert Offset.loads(offset.dumps(), 8) == offset

    first = SlotCommit.after(None, Slot(2), batch="0000000001-x", clock=SYSTEM_CLOCK)
    second = SlotCommit.after(first, Slot(2), batch="0000000002-x", clock=SYSTEM_CLOCK)
    state.check(offset, {Slot(2): second, Slot(7): None})
    for lost in (first, None):
        with pytest.raises(
            CorruptError, match=r"commits of slots \[2\] are gone .* begin with a new checkpoint"
        ):
            state.check(offset, {Slot(2): lost})
