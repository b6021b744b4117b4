"""From changed objects to committed rows, on a real S3 server. The table must have exactly the bucket's data."""

import io
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from s3notify_platform.engine.commit.staged import Base
from s3notify_platform.engine.read import splits
from s3notify_platform.kernel.errors import NotFoundError, UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import Slot, slot_of
from s3notify_platform.spark.spark_jobs import SparkJobs
from s3notify_platform.stores.config import S3Config
from s3notify_platform.table.versions import snapshot_of
from tests.support.servers import S3Server
from tests.support.spark import Lake

pytestmark = [pytest.mark.spark, pytest.mark.server]


@pytest.mark.parametrize("spread", [False, True])
def test_each_change_of_an_object_is_one_commit(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, *, spread: bool
) -> None:
    """One commit must remove the old rows of a changed object and add its new rows.

    A slot is read by one task, or by all tasks if it is much larger than others.
    """
    if spread:
        monkeypatch.setattr(splits, "TASK_BYTES", 1000)
    for number in range(12):
        lake.put(f"{number}.jsonl", [{"id": number, "v": f"{n}"} for n in range(3)])
    first = lake.ingest(signals={lake.slot("0.jsonl"): "signal-1"})
    assert {result.status for result in first.slots.values()} <= {"committed", "unchanged"}
    assert sum(result.rows for result in first.slots.values()) == 36
    assert sum(result.objects for result in first.slots.values()) == 12
    assert lake.snapshot().manifest.slot(lake.slot("0.jsonl")).signal == "signal-1"
    lake.check()

    lake.put("0.jsonl", [{"id": 100}])
    lake.delete("1.jsonl")
    lake.put("2.jsonl", b"")
    lake.put("new.jsonl", [{"id": 7, "v": "new"}])
    second = lake.ingest()
    touched = {lake.slot(key) for key in ("0.jsonl", "1.jsonl", "2.jsonl", "new.jsonl")}
    assert {s for s, result in second.slots.items() if result.status == "committed"} == touched
    assert sum(result.gone for result in second.slots.values()) == 1
    lake.check()

    lake.put("2.jsonl", [{"id": 2, "v": "filled later"}])
    lake.ingest()
    lake.check()
    assert lake.snapshot().manifest.slot(lake.slot("0.jsonl")).signal == "signal-1", (
        "a run without a signal keeps the earlier one"
    )


def test_run_without_changes_commits_nothing(lake: Lake) -> None:
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    again = lake.ingest()
    assert {result.status for result in again.slots.values()} == {"unchanged"}
    assert len(lake.history(lake.slot("a.jsonl"))) == 1
    assert again.slots[lake.slot("a.jsonl")].live_objects == 1


@pytest.mark.thorough
def test_run_with_the_option_only_found_skips_slots_without_objects(lake: Lake) -> None:
    lake.put("a.jsonl", [{"id": 1}])
    assert set(lake.ingest(only_found=True).slots) == {lake.slot("a.jsonl")}
    lake.delete("a.jsonl")
    assert set(lake.ingest(only_found=True).slots) == {lake.slot("a.jsonl")}
    assert set(lake.ingest(only_found=True).slots) == {lake.slot("a.jsonl")}, "the slot has a commit"
    assert lake.load() == []


@pytest.mark.thorough
def test_empty_bucket_makes_a_table_without_commits(lake: Lake) -> None:
    result = lake.ingest()
    assert {r.status for r in result.slots.values()} == {"unchanged"}
    with pytest.raises(NotFoundError, match="materialize it first"):
        lake.load()


@pytest.mark.thorough
def test_empty_objects_do_not_pin_a_schema(lake: Lake) -> None:
    """Objects of 0 bytes get a state and no rows. They must not pin a schema: a pinned schema without columns could
    never be corrected.
    """
    lake.put("a.jsonl", b"")
    assert lake.ingest().slots[lake.slot("a.jsonl")].status == "committed"
    assert lake.ingest().slots[lake.slot("a.jsonl")].status == "unchanged"
    lake.put("b.jsonl", [{"id": 1}])
    lake.ingest()
    assert lake.values() == [{"id": 1}]


ODD_KEYS = (
    "with space.jsonl",
    " leading",
    "a+b.jsonl",
    "per%20cent%.jsonl",
    "double//slash.jsonl",
    "trailing/",
    "../up.jsonl",
    "./here",
    "new\nline.jsonl",
    "tab\tkey",
    "日本語/ключ/🙂.jsonl",
    "star*?#[x]&=;,'\"`\\",
    "x" * (1024 - len("raw/")),
)


def test_odd_keys_keep_their_exact_names(lake_of: Callable[..., Lake]) -> None:
    """Every key that S3 allows must be written, read, overwritten and withdrawn under exactly its own name."""
    lake = lake_of(hidden_files="read")
    for number, key in enumerate(ODD_KEYS):
        lake.put(key, [{"id": number}])
    lake.ingest()
    lake.check()
    assert {row["_key"] for row in lake.load()} == {f"raw/{key}" for key in ODD_KEYS}
    for key in ODD_KEYS[::2]:
        lake.put(key, [{"id": -1}, {"id": -2}])
    for key in ODD_KEYS[1::2]:
        lake.delete(key)
    result = lake.ingest()
    assert all(r.ok for r in result.slots.values())
    lake.check()
    assert len(lake.load()) == 2 * len(ODD_KEYS[::2])


def _parquet(**columns: list[object]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


@pytest.mark.thorough
def test_csv_objects_are_ingested(lake_of: Callable[..., Lake]) -> None:
    lake = lake_of(format="csv", schema="id bigint, note string, at timestamp")
    lake.put("a.csv", b'id,note\r\n1,"two\r\nlines"\r\n2\r\n3,x\r\n')
    lake.put("b.csv", b'\xef\xbb\xbfid,note,at,other\n4,"q ""x""",2024-05-06T07:08:09Z,-\n')
    lake.put("header.csv", b"id,note\n")
    result = lake.ingest()
    assert sum(r.rows for r in result.slots.values()) == 3
    values = lake.values()
    assert [(row["id"], row["note"]) for row in values] == [(1, "two\r\nlines"), (3, "x"), (4, 'q "x"')]
    assert values[2]["at"].isoformat() == "2024-05-06T07:08:09+00:00"
    assert [(row["_key"], row["_offset"], row["raw"]) for row in lake.rejects()] == [("raw/a.csv", 25, b"2")]


def test_a_header_without_records_fixes_no_types(lake_of: Callable[..., Lake]) -> None:
    """Otherwise each column of the table would be a text for ever, and numbers would be texts."""
    lake = lake_of(format="csv")
    lake.put("a.csv", b"id,note\n")
    assert all(result.ok for result in lake.ingest().slots.values())
    lake.put("b.csv", b"id,note\n1,x\n")
    lake.ingest()
    assert lake.values() == [{"id": 1, "note": "x"}]


@pytest.mark.thorough
def test_parquet_objects_are_ingested(lake_of: Callable[..., Lake]) -> None:
    lake = lake_of(format="parquet")
    lake.put("a.parquet", _parquet(id=[1, 2], note=["x", None]))
    lake.put("b.parquet", _parquet(id=[3], note=["y"]))
    lake.put("broken.parquet", b"PAR1 this is none")
    lake.ingest()
    assert lake.values() == [{"id": 1, "note": "x"}, {"id": 2, "note": None}, {"id": 3, "note": "y"}]
    assert [(r["_key"], r["raw"]) for r in lake.rejects()] == [("raw/broken.parquet", b"PAR1 this is none")]


@pytest.mark.thorough
def test_text_and_binary_objects_are_ingested(lake_of: Callable[..., Lake]) -> None:
    lake = lake_of(format="text")
    lake.put("a.log", b"one\r\n\r\nthree")
    lake.ingest()
    assert [(r["value"], r["_offset"]) for r in lake.load()] == [("one", 0), ("", 5), ("three", 7)]
    lake = lake_of(format="binary")
    lake.put("a.bin", b"\x00\xff")
    lake.put("empty.bin", b"")
    lake.ingest()
    assert lake.values() == [{"content": b"\x00\xff"}, {"content": b""}]


def test_format_auto_means_the_format_of_the_suffix(lake_of: Callable[..., Lake]) -> None:
    lake = lake_of(format="auto")
    lake.put("a.jsonl", [{"id": 1, "note": "j"}])
    lake.put("b.CSV", b"id,note\n2,c\n")
    lake.put("c.parquet", _parquet(id=[3], note=["p"]))
    lake.put("d.unknown", b"?")
    lake.put("e.unknown", b"")
    lake.ingest()
    assert lake.values() == [{"id": 1, "note": "j"}, {"id": 2, "note": "c"}, {"id": 3, "note": "p"}]
    (reject,) = lake.rejects()
    assert reject["_key"] == "raw/d.unknown"
    assert "suffix" in reject["reason"]


def test_rejects_are_kept_and_withdrawn(lake: Lake) -> None:
    """A bad record must not stop other records. A bad record must be in quarantine until its object is overwritten or
    deleted.
    """
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()  # from now on, id is an integer
    lake.put("a.jsonl", b'{"id": 1}\nnot json\n{"id": "x"}\n{"id": 4}\n')
    lake.put("b.jsonl", b"{\n")
    lake.put("c.jsonl", b'{"id": 5}\n[]')
    result = lake.ingest()
    assert sum(r.rejects for r in result.slots.values()) == 4
    assert [row["id"] for row in lake.load()] == [1, 4, 5]
    etag = lake.load()[0]["_etag"]
    assert [(r["_key"], r["_offset"], r["raw"]) for r in lake.rejects()] == [
        ("raw/a.jsonl", 10, b"not json"),
        ("raw/a.jsonl", 19, b'{"id": "x"}'),
        ("raw/b.jsonl", 0, b"{"),
        ("raw/c.jsonl", 10, b"[]"),
    ]
    assert lake.rejects()[0]["_etag"] == etag
    lake.put("a.jsonl", [{"id": 1}])
    lake.delete("b.jsonl")
    result = lake.ingest()
    assert [(r["_key"], r["_offset"]) for r in lake.rejects()] == [("raw/c.jsonl", 10)]
    assert sum(r.live_rejects for r in result.slots.values() if r.status == "committed") <= 1
    assert [row["id"] for row in lake.load()] == [1, 5]


@pytest.mark.thorough
def test_run_ingests_more_objects_than_one_plan_holds(lake_of: Callable[..., Lake]) -> None:
    """`max_objects` limits a plan, and not a run: several rounds must commit, and no object may be left out."""
    lake = lake_of(max_objects=4, slots=2)
    for number in range(8):
        lake.put(f"{number}.jsonl", [{"id": number}])
    result = lake.ingest()
    assert all(r.status == "committed" for r in result.slots.values())
    assert sum(r.objects for r in result.slots.values()) == 8
    assert sum(r.rows for r in result.slots.values()) == 8
    assert max(r.generation for r in result.slots.values()) > 1
    lake.check()
    for number in range(8):
        lake.delete(f"{number}.jsonl")
    result = lake.ingest()
    assert sum(r.gone for r in result.slots.values()) == 8
    assert lake.load() == []


@pytest.mark.thorough
def test_only_the_batch_reaches_the_driver(
    lake_of: Callable[..., Lake],
) -> None:
    """If 5 objects have changed and 3,000 have not, the plan must have only 5 splits and 5 states. Otherwise the
    driver's memory would grow with the bucket.
    """
    lake = lake_of(slots=20, format="text")
    lake.put_many({f"{number}": b"x" for number in range(3000)})
    lake.ingest()
    for number in range(5):
        lake.put(f"{number}", b"y")
    base = Base(table=lake.source.table(), snapshot=lake.snapshot())
    found = SparkJobs(lake.spark, lake.source, width=2).plan(lake.source.location.all_slots(), base)
    assert sum(len(p.changes.read) for p in found.slots.values()) == 5
    assert sum(len(p.before) for p in found.slots.values()) == 5
    assert found.total("objects") == 3000
    assert found.requests["LIST"] == 3
    assert found.chains == 1
    result = lake.ingest()
    assert sum(r.objects for r in result.slots.values()) == 5
    assert len(lake.load()) == 3000


@pytest.mark.thorough
def test_states_beyond_the_manifest_go_to_a_file(lake_of: Callable[..., Lake]) -> None:
    """Otherwise states that do not fit in a manifest would be lost, and their objects would be read again."""
    lake = lake_of(slots=1, format="text")
    lake.put_many({f"{number}": b"x" for number in range(300)})
    lake.ingest()
    manifest = lake.snapshot().manifest
    assert (manifest.slot(Slot(0)).objects, manifest.states.inline) == (300, {})
    lake.put("7", b"changed")
    lake.delete("8")
    result = lake.ingest()
    assert (result.slots[Slot(0)].objects, result.slots[Slot(0)].gone) == (1, 1)
    assert len(lake.load()) == 299


@pytest.mark.thorough
def test_load_reads_slots_as_of_a_version(lake: Lake) -> None:
    """Slots must be loaded as of the newest table version, or as of a given table version."""
    lake.put("a.jsonl", [{"id": 1}])
    lake.put("b.jsonl", [{"id": 2}])
    lake.ingest()
    slot = lake.slot("a.jsonl")
    lake.put("a.jsonl", [{"id": 10}])
    lake.ingest()
    reader = lake.source.table().reader
    assert [row["id"] for row in lake.load([slot])][:1] == [10]
    assert [row["id"] for row in lake.load([slot], snapshot=snapshot_of(reader, 1))][:1] == [1]
    with pytest.raises(NotFoundError, match="no commit yet"):
        lake.load([slot], snapshot=snapshot_of(reader, 0))


@pytest.mark.thorough
def test_source_may_be_in_another_bucket_than_its_table(spark: SparkSession, ministack: S3Server) -> None:
    """The platform must never write to the source's bucket, and the source must need no prefix there."""
    raw = ministack.config(ministack.make_bucket())
    lake = Lake.of(spark, raw, platform=ministack.config(ministack.make_bucket()), prefix="")
    lake.put("a.jsonl", [{"id": 1}])
    lake.ingest()
    lake.check()
    assert [meta.key for meta in list_all(lake.store, "")] == ["a.jsonl"]


def test_ingest_works_on_the_embedded_server(spark: SparkSession, seaweed: S3Server) -> None:
    """Otherwise users of SeaweedFS, the platform's default server, would keep rows of deleted or overwritten objects,
    or would miss objects with special characters in their keys.
    """
    lake = Lake.of(spark, seaweed.config(seaweed.make_bucket()))
    for number in range(8):
        lake.put(f"{number} +%🙂.jsonl", [{"id": number}])
    lake.ingest()
    lake.check()
    lake.put("0 +%🙂.jsonl", [{"id": -1}])
    lake.delete("1 +%🙂.jsonl")
    lake.ingest()
    lake.check()


@pytest.mark.parametrize("what", ["bucket", "credentials", "endpoint"])
def test_operator_errors_are_distinguished_from_outages(
    what: str, lake: Lake, ministack: S3Server, seaweed: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing bucket and refused credentials need an operator, so their errors must not be retried. An unreachable
    endpoint must be retried. A secret in the error would be visible to all readers of the log.
    """
    monkeypatch.setenv("STRANGER", "who")
    monkeypatch.setenv("GUESS", "s3cr3t-guess")
    strangers = {"access_key_id_env": "STRANGER", "secret_access_key_env": "GUESS"}
    monkeypatch.setattr("s3notify_platform.engine.driver.OUTAGE_SECONDS", 0)
    config = {
        "bucket": ministack.config("no-such-bucket"),
        "credentials": S3Config(bucket="b", endpoint_url=seaweed.endpoint_url, **strangers),
        "endpoint": S3Config(bucket="b", endpoint_url="http://127.0.0.1:9", **strangers),
    }[what]
    broken = lake.with_source(bucket=config, platform=config)
    with pytest.raises(Exception, match=r"bucket 'b'|no-such-bucket") as caught:
        broken.ingest()
    assert isinstance(caught.value, UsageError) == (what != "endpoint"), caught.value
    assert type(caught.value).__module__ == "s3notify_platform.kernel.errors"
    assert "s3cr3t-guess" not in str(caught.value)


@pytest.mark.thorough
def test_run_changes_only_the_requested_slots(lake: Lake) -> None:
    """Otherwise a run would change slots of other runs. The `_slot` of each row must be the slot of its key."""
    keys = [lake.put(f"{number}.jsonl", [{"id": number}]) for number in range(10)]
    wanted = [lake.slot("0.jsonl")]
    result = lake.ingest(wanted)
    assert set(result.slots) == set(wanted)
    rows = lake.load()
    assert {row["_key"] for row in rows} == {key for key in keys if slot_of(key, 8) == wanted[0]}
    assert {row["_slot"] for row in rows} == set(wanted)
