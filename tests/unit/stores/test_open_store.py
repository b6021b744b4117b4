"""The opener of stores: a new kind of store needs only a file and an item in `KINDS`, and works for a source."""

import json
from collections import Counter

import pytest
from click.testing import CliRunner

from s3notify_platform.channels import open_publisher
from s3notify_platform.cli.main import main
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.orchestration.assets import build_slot_assets
from s3notify_platform.orchestration.component import S3NotifyComponent
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.build import build
from s3notify_platform.source.source import Source
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.kinds import KINDS
from s3notify_platform.stores.open_store import open_reader, open_store, open_tags, record_requests
from tests.support.ingested import rows_of
from tests.support.local_jobs import LocalJobs
from tests.support.toy_store import TOY, ToyStore


def test_each_bucket_has_one_store_in_a_process() -> None:
    """Otherwise each call would create a client, which takes 0.1 s."""
    assert open_store("s3://acme") is open_store("s3a://acme/") is open_store(S3Config(bucket="acme"))
    assert open_store("s3://acme") is not open_store(S3Config(bucket="acme", region="eu-west-3"))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("gs://acme", r"'gs://acme' is not the URL of a bucket: give s3://bucket/prefix \(schemes: s3\)"),
        ("s3:///raw", "give s3://bucket/prefix"),
        ("acme", "give s3://bucket/prefix"),
        ("s3://acme/raw/", "a store is a whole bucket: leave out the prefix 'raw/'"),
    ],
)
def test_invalid_urls_are_refused(url: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        open_store(url)


def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(UsageError, match="scheme='gs': use one of s3"):
        build({"name": "orders", "bucket": "b", "scheme": "gs"})
    with pytest.raises(UsageError, match="scheme='gs': use one of s3"):
        open_store(S3Config(bucket="b", scheme="gs"))


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Source:
    """A source on a kind of store that only this test registers."""
    monkeypatch.setitem(KINDS, "toy", TOY)
    settings = {"name": "orders", "bucket": request.node.name, "prefix": "raw/", "scheme": "toy"}
    return build(settings | {"format": "jsonl", "slots": 4, "platform_bucket": f"{request.node.name}-own"})


def test_requests_for_records_are_counted(source: Source) -> None:
    """Otherwise a batch would report too few requests to its user. A caller counts the requests through its
    own store. If the batch counted these requests, too, the report would have them twice.
    """
    place = source.location.platform
    before = record_requests(place)
    source.location.records().create("p", "k", b"1")
    assert source.location.queue().records.read("p", "k") is None
    source.location.records(open_store(place)).read("p", "k")
    open_store(place).head("k")
    assert record_requests(place) - before == Counter(PUT=1, GET=1)


def test_a_source_works_on_a_new_kind_of_store(source: Source) -> None:
    """Otherwise a new kind of store would need more code: to probe, publish, plan by listing or queue, read
    and commit.
    """
    objects, own = open_store(source.input.bucket), open_store(source.location.platform)
    assert isinstance(objects, ToyStore)
    assert objects is not own
    source = source.settle_commit_mode(own)
    assert source.commit.choice == "native"
    slots = source.location.all_slots()

    def ingested(batch: str) -> Counter[int]:
        run = Ingest(jobs=LocalJobs(source=source), source=source).run(slots, batch=batch)
        assert all(result.ok for result in run.slots.values()), run
        return Counter(row["a"] for row in rows_of(source))

    objects.put("raw/1", b'{"a":1}\n')
    objects.put("raw/a//b", b'{"a":2}\n')
    assert ingested("one") == {1: 1, 2: 1}
    objects.put("raw/1", b'{"a":3}\n')
    objects.delete("raw/a//b")
    assert ingested("two") == {3: 1}
    queue = source.location.queue()
    queue.topics.create("orders", TopicSettings(slots=4))
    bucket, platform = source.input.bucket.bucket, source.location.platform.bucket
    publisher = open_publisher("orders", bucket=bucket, platform_bucket=platform, scheme="toy", slots=4)
    publisher.put("raw/2", b'{"a":4}\n')
    assert [entry.event.key for entry in queue.entries("orders", slots)] == ["raw/2"]
    assert ingested("three") == {3: 1, 4: 1}


def test_urls_name_the_kind_of_store(source: Source) -> None:
    """Otherwise `s3notify table show` and Dagster's pages would print addresses that no engine finds."""
    source = source.settle_commit_mode(open_store(source.location.platform))
    Ingest(jobs=LocalJobs(source=source), source=source).run(source.location.all_slots(), batch="one")
    own = source.location.platform.bucket
    given = ["--scheme", "toy", "--bucket", source.input.bucket.bucket, "--platform-bucket", own]
    shown = CliRunner().invoke(main, ["table", "show", "orders", *given, "--slot-count", "4", "--json"])
    uri = f"toy://{own}/{source.location.layout.prefix.removesuffix('/')}"
    assert json.loads(shown.stdout)["url"] == f"{uri}/", shown.output
    settings = {"name": "orders", "bucket": "landing", "platform_bucket": own, "prefix": "raw/"}
    component = S3NotifyComponent(**settings, s3={"scheme": "toy"})
    (spec,) = build_slot_assets(component.assets()).specs
    assert (spec.metadata["source"], spec.metadata["dagster/uri"]) == ("toy://landing/raw/", uri)
    assert "`toy://landing/raw/`" in str(spec.description)
    assert f'.load("{uri}")' in spec.metadata["how_to_read"].value


def test_missing_features_of_a_store_are_reported(source: Source) -> None:
    assert open_reader(source.input.bucket) is None
    with pytest.raises(UsageError, match="has no tags: leave out committed_tags"):
        open_tags(source.input.bucket)
    with pytest.raises(UsageError, match="leases are for stores of S3's API"):
        build(
            {"name": "orders", "bucket": "b", "scheme": "toy", "commit": "dynamodb", "lease_table": "l"}
        ).table()
