"""Mistakes of users and operators. Each mistake is refused with a message that says what to do."""

from collections.abc import Callable

import pytest

from s3notify_platform.kernel.errors import S3NotifyError, UnavailableError, UsageError
from s3notify_platform.orchestration import S3NotifyComponent
from tests.support.servers import S3Server
from tests.support.site import Site

TRANSFORMS = "tests.support.transforms"


def component(**attributes: object) -> S3NotifyComponent:
    fields: dict[str, object] = {"name": "orders", "bucket": "b", "prefix": "raw/"}
    return S3NotifyComponent(**(fields | attributes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"slots": 0}, "slots=0: a keyspace has 1 to 1000 slots"),
        ({"slots": 1001}, "slots=1001: a keyspace has 1 to 1000 slots"),
        ({"name": "Orders!"}, "source name 'Orders!'"),
        ({"prefix": "_s3notify/orders/"}, "among the platform's own objects below '_s3notify/orders/'"),
        ({"prefix": "raw/own/in/", "platform_prefix": "raw/own/"}, "platform's own objects below 'raw/own/'"),
        ({"prefix": "_s3notify/orders/table/"}, "platform's own objects"),
        ({"modified_after": "yesterday"}, "give a time like 2026-01-31T12:00:00Z"),
        ({"modified_after": "2026-01-31T12:00:00"}, "add the time zone, like 2026-01-31T12:00:00Z"),
        ({"transform": "no.such.module"}, "cannot import 'no.such.module'"),
        ({"transform": "json.no_such_function"}, "cannot import 'json.no_such_function'"),
        ({"transform": "nodots"}, "cannot import 'nodots'"),
        ({"slot_assets": ["json.dumps"]}, "json.dumps is not a slot asset: decorate"),
        (
            {"slot_assets": [f"{TRANSFORMS}.foreign"]},
            "'foreign' belongs to source 'somebody_else', not 'orders'",
        ),
        ({"format": "xml"}, "auto, jsonl, json, csv, tsv, parquet, avro, orc, text, binary"),
        ({"parallel_runs": 0}, "parallel_runs"),
        ({"max_open": 0}, "max_open"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_objects": 0}, "max_objects=0"),
        ({"encoding": "klingon"}, "encoding 'klingon'"),
    ],
)
def test_settings_that_cannot_work_are_refused_when_loaded(
    attributes: dict[str, object], message: str
) -> None:
    """A setting that cannot work must be refused before anything runs."""
    with pytest.raises(UsageError) as raised:
        component(**attributes).definitions()
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"interval_seconds": 0}, "interval_seconds=0: must be at least 1"),
        ({"mismatches": "drop"}, "use one of quarantine, rescue"),
        ({"hidden_files": "maybe"}, "use one of skip, read"),
        ({"on_delete": "ignore"}, "use one of withdraw, keep, keep_expired"),
        ({"bukcet": "b"}, "bukcet: there is no such setting; did you mean bucket?"),
        ({"s3": {"aws_secret_access_key": "by value"}}, "s3.aws_secret_access_key: there is no such setting"),
    ],
)
def test_attributes_that_do_not_exist_are_refused(attributes: dict[str, object], message: str) -> None:
    """An attribute with a secret as its value must be refused too, and the secret must not be shown."""
    with pytest.raises(UsageError) as raised:
        component(**attributes)
    assert message in str(raised.value)
    assert "by value" not in str(raised.value)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"transform": f"{TRANSFORMS}.raising"},
            "the transform of source 'orders' raised KeyError: 'no such thing'",
        ),
        ({"transform": f"{TRANSFORMS}.forgetful"}, "drops or changes the lineage column '_slot'"),
        ({"transform": f"{TRANSFORMS}.wrong_column"}, "nonexistent"),
    ],
)
def test_a_run_fails_with_the_reason_if_the_users_code_cannot_work(
    site_of: Callable[..., Site], attributes: dict[str, object], message: str
) -> None:
    """The sensor must keep the reason, and must not request the slot again soon."""
    site = site_of(max_attempts=1, **attributes)
    site.settle()
    site.write(3)
    (request,) = site.tick()
    result = site.launch(request)
    assert not result.success
    assert message in site.failure(result)
    assert site.tick() == []
    assert message[:40] in site.state.failing[3].reason
    assert site.grid()["materialized"] == set()


@pytest.mark.thorough
def test_a_slot_asset_that_cannot_work_does_not_delay_its_source(site_of: Callable[..., Site]) -> None:
    """The run must fail with the reason. The slot of the source must be committed, and must not be requested again."""
    site = site_of(max_attempts=1, slot_assets=[f"{TRANSFORMS}.slotless_orders"])
    site.settle()
    site.write(3)
    (request,) = site.tick()
    result = site.launch(request)
    assert not result.success
    assert "slot asset 'slotless_orders' drops the column _slot" in site.failure(result)
    assert site.tick() == []
    assert site.state.failing == {}
    assert site.rows() == {3: [3]}


def test_a_run_for_an_unknown_slot_is_refused(site: Site) -> None:
    """A person may type a wrong slot into the launchpad. Without the message, this person would not learn which slots
    the source has.
    """
    result = site.run([3, 16])
    assert "unknown slot '16': slots are 0 to 15" in site.failure(result)
    assert "unknown slot '-1'" in site.failure(site.run([-1]))


def test_a_run_without_slots_is_refused(site: Site) -> None:
    """Without the message, a person who launches the job without partitions or config would not learn how to choose
    slots.
    """
    assert "this run has no slots: choose partitions" in site.failure(site.run([]))


def test_a_run_for_an_unknown_batch_is_refused(site: Site) -> None:
    """An unknown batch has no chain on which the run could stamp its slots."""
    assert "batch 'made-up' has no ack chain" in site.failure(site.run([3], batch="made-up"))


def refused(site: Site, kind: type[S3NotifyError], *messages: str) -> None:
    """Asserts that the sensor and a run fail with these messages."""
    with pytest.raises(kind) as raised:
        site.tick()
    result = site.run([3])
    assert not result.success
    for text in (str(raised.value), site.failure(result)):
        for message in messages:
            assert message in text


def test_a_missing_bucket_is_refused_by_name(site_of: Callable[..., Site]) -> None:
    refused(site_of(bucket="no-such-bucket"), UsageError, "no-such-bucket")


def test_refused_credentials_are_reported(
    site_of: Callable[..., Site], seaweed: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message must name the bucket, and must not contain a credential."""
    bucket = seaweed.make_bucket()
    monkeypatch.setenv("S3NOTIFY_TEST_SECRET", "wrong-secret")
    site = site_of(
        bucket=bucket,
        s3={
            "endpoint_url": seaweed.endpoint_url,
            "access_key_id_env": "S3NOTIFY_TEST_KEY",
            "secret_access_key_env": "S3NOTIFY_TEST_SECRET",
        },
    )
    refused(site, UsageError, bucket)


def test_an_unreachable_endpoint_is_unavailable(
    site_of: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error class must allow a retry, since the endpoint may come back."""
    site = site_of(
        s3={
            "endpoint_url": "http://127.0.0.1:9",
            "access_key_id_env": "S3NOTIFY_TEST_KEY",
            "secret_access_key_env": "S3NOTIFY_TEST_SECRET",
        }
    )
    refused(site, UnavailableError, "127.0.0.1:9")


def test_an_unset_credential_variable_is_refused(
    site_of: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message must name the variable."""
    monkeypatch.delenv("S3NOTIFY_TEST_SECRET")
    site = site_of()
    with pytest.raises(UsageError, match="no environment variable S3NOTIFY_TEST_SECRET"):
        site.tick()
