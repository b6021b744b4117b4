"""AWS in this process, by moto. Requests of botocore never leave the process."""

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore


@pytest.fixture
def moto_aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A mock of AWS without any resources."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with mock_aws():
        yield


@pytest.fixture
def moto_store(moto_aws: None) -> Iterator[S3ObjectStore]:
    """An empty bucket."""
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="moto")
    store = S3ObjectStore(S3Config(bucket="moto"))
    yield store
    store.close()
