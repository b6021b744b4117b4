"""`s3notify doctor`: what it says, and its exit code."""

import pytest
from click.testing import CliRunner

from s3notify_platform.cli import main


@pytest.fixture
def doctor(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    return lambda *arguments: CliRunner().invoke(main, ["doctor", *arguments])


@pytest.mark.server
def test_a_good_store(doctor, ministack):
    """Exit code 0, the mode, and what is lacking all the same."""
    bucket = ministack.make_bucket()
    result = doctor("--bucket", bucket, "--endpoint-url", ministack.endpoint_url, "--prefix", "scratch/")
    assert result.exit_code == 0, result.output
    assert "native" in result.output
    assert "copy_if_absent: a COPY onto an existing object was applied" in result.output


@pytest.mark.server
def test_a_missing_bucket(doctor, ministack):
    """Exit code 1, and what to do."""
    result = doctor("--bucket", "no-such-bucket", "--endpoint-url", ministack.endpoint_url)
    assert result.exit_code == 1
    assert "no bucket 'no-such-bucket'" in result.output
    assert "create it" in result.output


def test_nobody_there(doctor):
    """Exit code 1, and the endpoint's name."""
    result = doctor("--bucket", "some-bucket", "--endpoint-url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert "http://127.0.0.1:9 is unavailable" in result.output


def test_help():
    """The group names its commands."""
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "doctor" in result.output
