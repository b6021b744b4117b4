"""A read returns the planned version, or nothing: every GET of an object's bytes requires the planned ETag."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from s3notify_platform.engine.driver import Ingest
from s3notify_platform.engine.read import fetch as fetching
from s3notify_platform.engine.read.fetch import fetch
from s3notify_platform.engine.read.remote_bytes import RemoteBytes
from s3notify_platform.engine.stage.collect import StagedPart
from s3notify_platform.engine.values.slot_plan import SlotPlan
from s3notify_platform.kernel.errors import ConflictError
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.objects import put
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

KEYS = pytest.mark.parametrize("key", ["plain.jsonl", "odd//key.jsonl"])
"""obstore reads the first key; boto3 reads the second, which obstore cannot express."""


@KEYS
def test_an_object_overwritten_between_plan_and_read_is_superseded(ministack: S3Server, key: str) -> None:
    """Otherwise rows of the new version would have the ETag of the old version in `_etag`. The size does not
    show the change, because both versions have the same size.
    """
    place = Place(ministack)
    place.put(key, 1, 2)
    place.put("other.jsonl", 9)

    class Overtaken(LocalJobs):
        def stage(self, busy: Sequence[SlotPlan], *arguments: Any, **more: Any) -> list[StagedPart]:
            place.put(key, 3, 4)
            return super().stage(busy, *arguments, **more)

    engine = Ingest(jobs=Overtaken(source=place.source), source=place.source)
    result = engine.run(place.source.location.all_slots(), batch="1")
    assert sum(slot.superseded for slot in result.slots.values()) == 1
    assert place.values() == Counter([9])
    place.run("2")
    assert place.values() == Counter([3, 4, 9])


@KEYS
@pytest.mark.parametrize("chunk_bytes", [8 << 20, 5])
def test_a_whole_object_is_read_under_its_etag(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch, key: str, chunk_bytes: int
) -> None:
    """The old and the new version have the same size. Without `If-Match` in each GET, a body could have bytes of two
    versions, and the table could get records that neither version contains.
    """
    monkeypatch.setattr(fetching, "CHUNK_BYTES", chunk_bytes)
    config = ministack.config(ministack.make_bucket())
    version = put(config, key, b"the old one")
    put(config, key, b"the new one")
    ((found,),) = fetch(config, [version])
    assert (found.status, found.body) == ("superseded", b"")


@KEYS
def test_a_part_of_an_object_is_read_under_its_etag(ministack: S3Server, key: str) -> None:
    """Without `If-Match`, a task could join parts of the old and the new version into records that neither
    version contains. If obstore cannot express an object's key, the first GET reads the whole object.
    """
    config = ministack.config(ministack.make_bucket())
    version = put(config, key, b"the old one")
    begun = RemoteBytes(config, version)
    assert begun.read(0, 7) == b"the old"
    put(config, key, b"the new one")
    with pytest.raises(ConflictError):
        RemoteBytes(config, version).read(0, 7)
    if key.startswith("plain"):
        with pytest.raises(ConflictError):
            begun.read(7, 11)
    else:  # at this point, boto3 has already read the whole object
        assert begun.read(4, 11) == b"old one"
