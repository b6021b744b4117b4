"""The options of `spark.read.format("s3notify")`, which are converted to a source without a session or a request."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ETag, ObjectMeta
from s3notify_platform.spark.datasource.options import reading_of
from tests.contracts.fault_proxy import FaultProxy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckt": "b"}, "buckt: there is no such setting; did you mean bucket?"),
        ({"prefix": "raw/"}, "bucket is missing: Bucket of the objects"),
        ({"bucket": "b", "prefix": "raw/", "slots": "many"}, "slots='many': give a whole number"),
        ({"bucket": "b", "prefix": "raw/", "access_key_id_env": "NO_SUCH"}, "give key id and secret"),
        ({"bucket": "b", "prefix": "raw/", "read": "it"}, "read='it': use one of objects, table"),
        ({"bucket": "b", "prefix": "raw/", "rejects": "hide"}, "rejects='hide'"),
        (
            {"bucket": "b", "version": "3"},
            "option 'version' is only for the committed table: give read='table'",
        ),
        ({"bucket": "b", "read": "table", "version": "x"}, "version='x': give the number of a version; "),
        (
            {"bucket": "b", "read": "table", "since": "-1"},
            "since='-1': give the number of a version, or newest",
        ),
        ({"bucket": "b", "read": "table", "at": "noon"}, "at='noon': give a time like"),
        (
            {"bucket": "b", "read": "table", "at": "2026-01-31T12:00"},
            "at='2026-01-31T12:00': add the time zone",
        ),
        (
            {"bucket": "b", "read": "table", "version": "3", "at": "2026-01-31T12:00:00Z"},
            "options version and at: give one of them",
        ),
        ({"bucket": "b", "prefix": "raw/", "only": "1,x"}, "x"),
        ({"path": "http://b/raw/"}, "give s3://bucket/prefix"),
        ({"bucket": "b", "prefix": "_s3notify/"}, "among the platform's own objects"),
        ({"bucket": "b", "maxFilesPerTrigger": "3", "max_objects": "3"}, "are the same: give one of them"),
        ({"bucket": "b", "maxBytesPerTrigger": "1 gig"}, "maxBytesPerTrigger='1 gig': give bytes"),
        ({"bucket": "b", "mode": "STRICT"}, "use one of PERMISSIVE, DROPMALFORMED, FAILFAST"),
        ({"bucket": "b", "pathGlobFilter": "*.{a,b}"}, "use the option include"),
    ],
)
def test_wrong_options_are_refused_with_a_remedy(
    options: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Spark would ignore a mistyped option and read other data than the user wants, or would fail
    later with an error that names no remedy. If the check sent a request, an unreachable store would hide the
    wrong option.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with FaultProxy("http://127.0.0.1:9") as proxy:
        with pytest.raises(UsageError, match=message):
            reading_of(options | {"endpoint_url": proxy.url})
        assert not proxy.requests


def test_options_accept_the_names_of_spark() -> None:
    """Spark's names must have the same effect as the data source's own names."""
    names = {"maxFilesPerTrigger": "7", "PathGlobFilter": "*.csv", "modifiedAfter": "2026-01-01T00:00:00Z"}
    reading = reading_of({"bucket": "b", "mode": "failfast", "sep": ";", **names})
    chosen = reading.source.input
    assert (chosen.max_objects, chosen.csv_delimiter, reading.rejects) == (7, ";", "fail")
    choice = reading.source.choice
    assert [choice.covers(key) for key in ("a.csv", "x/a.csv", "a.csv/b")] == [False, False, False]
    written = ObjectMeta(key="", etag=ETag("e"), size=1, modified_ms=1_767_225_600_000)
    assert [not choice.why_not(key, written) for key in ("a.csv", "x/a.csv", "a.csv/b")] == [
        True,
        True,
        False,
    ]
    assert (
        choice.why_not("a.csv", replace(written, modified_ms=written.modified_ms - 1))
        == "it was written before modified_after"
    )


@pytest.mark.parametrize(
    ("given", "size"), [("1000", 1000), ("512b", 512), ("64k", 1 << 16), ("3MB", 3 << 20), (" 1g ", 1 << 30)]
)
def test_sizes_are_accepted_in_the_notation_of_spark(given: str, size: int) -> None:
    """Sizes in Spark's notation must be accepted only for Spark's own option."""
    assert reading_of({"bucket": "b", "maxBytesPerTrigger": given}).source.input.max_bytes == size


def test_path_names_bucket_and_prefix() -> None:
    """The option `path` must be accepted in its usual spellings."""
    source = reading_of({"path": "s3a://acme/raw/orders/", "platform_bucket": "own"}).source
    assert (source.input.bucket.bucket, source.input.prefix, source.location.platform.bucket) == (
        "acme",
        "raw/orders/",
        "own",
    )


def test_no_option_is_a_secret() -> None:
    """Spark shows options in its plans. If an option had an access key as its value, everybody who can see a plan or an
    error message could use the key.
    """
    with pytest.raises(UsageError, match="secret_access_key: there is no such setting") as raised:
        reading_of({"bucket": "b", "prefix": "raw/", "secret_access_key": "s3cret"})
    assert "s3cret" not in str(raised.value)
