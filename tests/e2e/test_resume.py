"""A run gets SIGKILL in the middle of big objects. The next run reads only data that is not committed."""

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3notify_platform.kernel.limits import MAX_CSV_HEADER_BYTES
from s3notify_platform.kernel.slots import Slot
from tests.contracts.fault_proxy import FaultProxy
from tests.support.changing import COLUMNS, changing_source, place_of
from tests.support.checked import all_whole, whole
from tests.support.drivers import WAIT_SECONDS, Driver
from tests.support.independent import differences
from tests.support.servers import S3Server

pytestmark = [pytest.mark.e2e, pytest.mark.thorough, pytest.mark.timeout(600)]

COUNT = 15_000
PART = 200_000
ROUND_BYTES = 500_000
KILLED_IN_ROUND = 6


def jsonl(place: int) -> bytes:
    return b"".join(b'{"id": %d, "note": "%0100d"}\n' % (place + n, n) for n in range(COUNT))


def csv(place: int) -> bytes:
    return b"id,note\n" + b"".join(b'%d,"%0100d\n"\n' % (place + n, n) for n in range(COUNT))


def parquet(place: int) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"id": range(place, place + COUNT), "note": [f"{n:0100d}" for n in range(COUNT)]})
    pq.write_table(table, sink, row_group_size=1000, compression="none", use_dictionary=False)
    return sink.getvalue()


def test_killed_run_continues_big_objects(ministack: S3Server, tmp_path: Path) -> None:
    """The kill comes in the sixth round. The rows of the first five rounds must stay, and must be neither read again
    nor doubled.
    """
    config = ministack.config(ministack.make_bucket())
    bodies = {"raw/a.jsonl": jsonl(0), "raw/b.csv": csv(COUNT), "raw/c.parquet": parquet(2 * COUNT)}
    with FaultProxy(ministack.endpoint_url) as proxy:
        limits = {"split_bytes": PART, "max_bytes": ROUND_BYTES}
        source = changing_source(config, proxy, **limits)
        place = place_of(source, COLUMNS)
        for key, body in bodies.items():
            place.client().put_object(Bucket=place.bucket, Key=key, Body=body)
        given = {
            "source": {
                "name": source.name, "prefix": source.input.prefix, "format": source.input.format,
                "schema": source.input.schema, "slots": 1, **limits,
            },
            "listing": True,
            "endpoint_url": proxy.url,
        }  # fmt: skip
        driver = Driver(
            {"bucket": place.bucket, "endpoint_url": ministack.endpoint_url},
            {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"},
            tmp_path / "driver.log",
        )
        try:
            driver.tell(given | {"batch": "killed"})
            rounds = 0
            while rounds < KILLED_IN_ROUND:
                answer = driver.answer(WAIT_SECONDS)
                assert answer
                assert "progress" in answer, (answer, driver.tail())
                rounds += answer["progress"].startswith("reading")
            driver.kill()

            table = source.table()
            newest = whole(table)
            assert newest is not None
            assert newest.manifest.slot(Slot(0)).pending
            assert newest.version >= KILLED_IN_ROUND - 1
            ((_, states),) = table.states.of_slots(newest.manifest.states, [Slot(0)])
            committed = {key: state.offset for key, state in states.items()}
            proxy.answered.clear()
            driver.tell(given | {"batch": "next"})
            while "progress" in (answer := driver.answer(WAIT_SECONDS) or {"error": "nothing came"}):
                pass
            assert answer.get("complete"), (answer, driver.tail())
        finally:
            driver.kill()
        read = dict.fromkeys(bodies, 0)
        for request in proxy.answered:
            key = request.path.partition("?")[0].removeprefix(f"/{place.bucket}/")
            if request.method == "GET" and key in read:
                read[key] += request.sent
    left = {key: len(body) - committed.get(key, 0) for key, body in bodies.items()}
    print(json.dumps({"committed": committed, "left": left, "read": read}))
    all_whole(source.location)
    assert not differences(place)
    assert 0 < sum(left.values()) < sum(map(len, bodies.values())) * 0.7
    for key in bodies:
        done = key in states and states[key].reach_end
        # The next run also reads footers, and the ends of records that extend beyond their split. For CSV, the next run
        # also scans for quotes, and every split reads the header.
        headers = (left[key] // PART + 3) * MAX_CSV_HEADER_BYTES if key.endswith(".csv") else 0
        assert read[key] <= (0 if done else 2.5 * left[key] + headers), (key, read, left)
