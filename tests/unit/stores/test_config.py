"""Default region of buckets and tables."""

from pathlib import Path

import pytest

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
