"""Big objects, which several tasks read in parts. Each record is read once, even in several rounds, and each round
continues at the end of the previous round.
"""

import gzip
import io
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest

from s3notify_platform.kernel.slots import Slot
from tests.contracts.fault_proxy import FaultProxy
from tests.support.avro import file_of
from tests.support.servers import S3Server
from tests.support.spark import Lake

COUNT = 400
PART = 1500


def jsonl(numbers: range) -> bytes:
    return b"".join(b'{"n": %d, "text": "%s"}\n' % (n, b"x" * (n % 50)) for n in numbers)


def csv(numbers: range) -> bytes:
    return b"n,text\n" + b"".join(b'%d,"a\n""%s"\n' % (n, b"y" * (n % 60)) for n in numbers)


def parquet(numbers: range) -> bytes:
    sink = io.BytesIO()
    table = pa.table({"n": pa.array(numbers, pa.int64()), "text": [f"{n}" * 20 for n in numbers]})
    pq.write_table(table, sink, row_group_size=25, compression="none")
    return sink.getvalue()


def avro(numbers: range) -> bytes:
    fields = [{"name": "n", "type": "long"}, {"name": "text", "type": ["null", "string"]}]
    return file_of([{"n": n, "text": "z" * (n % 70)} for n in numbers], fields, block=300)


def orc(numbers: range) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"n": pa.array(numbers, pa.int64()), "text": [f"{n}" * 20 for n in numbers]})
    pa_orc.write_table(table, sink, stripe_size=2000, batch_size=64, compression="uncompressed")
    body: bytes = sink.getvalue().to_pybytes()
    return body


BODIES: dict[str, Callable[[range], bytes]] = {
    "big.jsonl": jsonl,
    "big.csv": csv,
    "big.parquet": parquet,
    "big.avro": avro,
    "big.orc": orc,
    "big.jsonl.gz": lambda numbers: gzip.compress(jsonl(numbers), 0, mtime=0),
}


one = pytest.mark.parametrize(
    "big",
    [name if name == "big.jsonl" else pytest.param(name, marks=pytest.mark.thorough) for name in BODIES],
    indirect=True,
)
"""Runs a test with one body only, unless all tests run."""


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.thorough) if name.endswith(("avro", "orc")) else name
        for name in BODIES
    ]
)
def big(request: pytest.FixtureRequest, lake_of: Callable[..., Lake]) -> tuple[Lake, str, bytes]:
    """A lake in which objects of 1500 bytes and more are big, and a big object in it."""
    lake = lake_of(slots=1, format="auto", schema="n bigint, text string", split_bytes=PART)
    body = BODIES[request.param](range(COUNT))
    lake.put(request.param, body)
    return lake, request.param, body


def numbers_in(lake: Lake) -> list[int]:
    return sorted(row["n"] for row in lake.load())


def test_big_object_is_read_once_by_many_tasks(big: tuple[Lake, str, bytes]) -> None:
    """One commit must have all parts of the big object, and a small object of the same slot."""
    lake, key, body = big
    lake.put("small.jsonl", [{"n": -1, "text": "small"}])
    (result,) = lake.ingest().slots.values()
    assert (result.objects, result.rows, result.rejects, result.complete) == (2, COUNT + 1, 0, True)
    assert numbers_in(lake) == [-1, *range(COUNT)]
    assert len(lake.history(Slot(0))) == 1
    state = lake.states(Slot(0))[f"raw/{key}"]
    assert (state.size, state.reach_end, state.rows) == (len(body), True, COUNT)
    lake.put(key, [{"n": 1, "text": "now small"}] if key.endswith("jsonl") else BODIES[key](range(2)))
    lake.ingest()
    assert set(numbers_in(lake)) <= {-1, 0, 1}


@one
def test_big_object_is_read_over_several_rounds(big: tuple[Lake, str, bytes]) -> None:
    """If the bytes of a round are limited, each round must commit the object's rows up to some offset. The next round
    must continue at this offset.
    """
    lake, _, _ = big
    limited = lake.with_source(max_bytes=2 * PART)
    (result,) = limited.ingest().slots.values()
    assert (result.rows, result.complete, result.objects) == (COUNT, True, len(limited.history(Slot(0))))
    assert numbers_in(limited) == [*range(COUNT)]
    offsets = []
    for event in limited.history(Slot(0)):
        (state,) = limited.states(Slot(0), version=event.version).values()
        assert state.pending == (not state.reach_end)
        offsets.append(state.offset)
    assert offsets == sorted(set(offsets))
    assert len(offsets) > 2


@one
def test_run_continues_a_big_object_after_a_timeout(big: tuple[Lake, str, bytes]) -> None:
    """The first run must report that it is incomplete. The next run must read only the remaining bytes, although no
    object has changed.
    """
    lake = big[0]
    short = lake.with_source(max_bytes=2 * PART, max_seconds=0)
    (first,) = short.ingest().slots.values()
    assert not first.complete
    assert 0 < first.rows < COUNT
    assert numbers_in(short) == [*range(first.rows)]
    (rest,) = lake.ingest().slots.values()
    assert (rest.rows, rest.complete) == (COUNT - first.rows, True)
    assert numbers_in(lake) == [*range(COUNT)]
    assert lake.snapshot().manifest.slot(Slot(0)).pending == 0


@one
def test_rows_of_an_object_overwritten_between_rounds_are_withdrawn(big: tuple[Lake, str, bytes]) -> None:
    """Otherwise rows of the old object version would stay in the table."""
    lake, key, _ = big
    short = lake.with_source(max_bytes=2 * PART, max_seconds=0)
    short.ingest()
    lake.put(key, BODIES[key](range(1000, 1000 + COUNT)))
    lake.ingest()
    assert numbers_in(lake) == [*range(1000, 1000 + COUNT)]
    short.ingest()
    lake.delete(key)
    lake.ingest()
    assert numbers_in(lake) == []
    assert lake.snapshot().manifest.slot(Slot(0)).pending == 0


@pytest.mark.thorough
def test_transform_gets_the_rows_of_a_big_object_once(lake_of: Callable[..., Lake]) -> None:
    """With a transform, rows pass through Spark's shuffle, where rows could be doubled. Each row must be committed
    once.
    """
    lake = lake_of(slots=2, format="auto", schema="n bigint, text string", split_bytes=PART)
    for name, body_of in BODIES.items():
        lake.put(name, body_of(range(COUNT)))
    lake.ingest(transform=lambda frame: frame.where("n % 2 = 0"))
    assert numbers_in(lake) == sorted([*range(0, COUNT, 2)] * len(BODIES))


@pytest.mark.thorough
def test_requests_for_parts_are_counted(lake_of: Callable[..., Lake], ministack: S3Server) -> None:
    """The reported number of requests must equal the number of sent requests. A part takes a few requests, and an
    object that is read as a whole takes one request.
    """
    lake = lake_of(slots=1, schema="n bigint, text string", split_bytes=PART)
    lake.put("big.jsonl", jsonl(range(COUNT)))
    lake.put_many({f"{n}.jsonl": jsonl(range(1)) for n in range(5)})
    with FaultProxy(ministack.endpoint_url) as proxy, FaultProxy(ministack.endpoint_url) as other:
        bucket, platform = (replace(lake.source.input.bucket, endpoint_url=p.url) for p in (proxy, other))
        result = lake.with_source(bucket=bucket, platform=platform).ingest()
        sent = sum(r.method == "GET" and "/raw/" in r.path for r in proxy.answered)
        of_platform = sum(r.method == "GET" for r in other.answered)
    assert sent > 5 + len(jsonl(range(COUNT))) // PART + of_platform
    assert sent <= result.requests["GET"] <= sent + of_platform


def test_malformed_record_of_a_big_object_is_a_reject(lake_of: Callable[..., Lake]) -> None:
    """Each reject must have the offset of its record in the object. Other records must be ingested."""
    lake = lake_of(slots=1, schema="n bigint, text string", split_bytes=PART)
    lines = jsonl(range(COUNT)).splitlines(keepends=True)
    places = {}
    for number in (0, 77, 200, COUNT - 1):
        lines[number] = b'{"n": "%s"}\n' % (b"bad" * 5)
    for number in (0, 77, 200, COUNT - 1):
        places[sum(map(len, lines[:number]))] = lines[number].strip()
    lake.put("big.jsonl", b"".join(lines))
    (result,) = lake.ingest().slots.values()
    assert (result.rows, result.rejects) == (COUNT - 4, 4)
    rejects = lake.rejects()
    assert {row["_offset"]: row["raw"] for row in rejects} == places
