"""The default region of buckets and tables, and texts that no request can contain."""

from pathlib import Path
from typing import Any

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.config import DynamoConfig, S3Config, default_region


@pytest.fixture
def profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty file of profiles, and no region in the environment."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config"
    path.write_text("")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    return path


def test_the_default_region_is_the_one_of_aws_tools(profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise requests would be signed for another region than the requests of AWS's tools on the same machine."""
    assert default_region() == "us-east-1"
    other = profile.with_name("other")
    other.write_text("[default]\nregion = eu-south-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(other))
    assert S3Config(bucket="b").region == "eu-south-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert DynamoConfig(table="t").region == "eu-north-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert S3Config(bucket="b").region == "eu-west-1"
    assert S3Config(bucket="b", region="eu-central-1").region == "eu-central-1"


@pytest.mark.parametrize(
    "field", ["region", "kms_key_id", "access_key_id", "secret_access_key", "session_token"]
)
def test_a_text_with_a_line_break_is_refused(field: str) -> None:
    """Otherwise the client would panic, or the store would seem to be unavailable. The message must show no secret."""
    keys: dict[str, Any] = {"access_key_id": "a", "secret_access_key": "b"}
    with pytest.raises(UsageError, match=f"{field} .*line break.*remove it") as refused:
        S3Config(bucket="b", **{**keys, field: "secret\n"})
    assert "secret\n" not in str(refused.value)


def test_a_region_of_the_environment_with_a_line_break_is_refused(
    profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1\n")
    with pytest.raises(UsageError, match=r"region .*line break"):
        S3Config(bucket="b")


def test_a_bucket_name_that_no_url_can_have_is_refused() -> None:
    """Otherwise the client would panic at the first request."""
    with pytest.raises(UsageError, match="letters, digits"):
        S3Config(bucket="a b")


@pytest.mark.parametrize(
    "url", ["http://[::1]:9000", "https://s3.eu-west-1.amazonaws.com/", "http://10.0.0.1:80"]
)
def test_an_endpoint_that_is_a_url_is_accepted(url: str) -> None:
    assert S3Config(bucket="b", endpoint_url=url).endpoint == url


@pytest.mark.parametrize(
    "url",
    [
        "localhost:9000",
        "http://",
        "http://h:99999",
        "http://h:x",
        "http://h:9\n",
        "http://a b",
        "http://[::1",
        "http://s3.{region}.example.com",
        "http://10.0.0.256",
        "http://h%41",
        "http://xn--a",
    ],
)
@pytest.mark.parametrize("in_environment", [True, False])
def test_an_endpoint_that_is_no_url_is_refused(
    monkeypatch: pytest.MonkeyPatch, url: str, in_environment: bool
) -> None:
    """Otherwise the client would panic at the first request."""
    if in_environment:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    with pytest.raises(UsageError, match=r"endpoint .*give its URL|line break.*remove it"):
        S3Config(bucket="b", endpoint_url=None if in_environment else url)
