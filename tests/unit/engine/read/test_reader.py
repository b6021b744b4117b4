"""The sample of objects from which a schema is inferred."""

import pytest

from s3notify_platform.engine.read.reader import SAMPLE_OBJECTS, sample_of
from s3notify_platform.kernel.ports import ETag
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectVersion
from s3notify_platform.stores.config import S3Config
from tests.support.sources import source_of


@pytest.mark.parametrize(
    "count", [1, SAMPLE_OBJECTS - 1, SAMPLE_OBJECTS, 2 * SAMPLE_OBJECTS - 1, 10 * SAMPLE_OBJECTS]
)
def test_a_sample_is_spread_over_all_objects(count: int) -> None:
    """Otherwise columns that only later objects have would not be inferred, since keys often begin with a date."""
    versions = [
        ObjectVersion(key=f"raw/{number:06}.jsonl", etag=ETag("e"), size=10, slot=Slot(0))
        for number in range(count)
    ]
    sample = sample_of(source_of(bucket=S3Config(bucket="b"), name="orders", prefix="raw/"), versions)
    places = [versions.index(version) for version in sample]
    assert len(places) == min(count, SAMPLE_OBJECTS)
    gaps = [after - before for before, after in zip(places, [*places[1:], count], strict=True)]
    assert places[0] == 0
    assert max(gaps) - min(gaps) <= 1
