"""`s3notify reconcile` on a real server."""

import os
import signal
import subprocess
import sys

import pytest

from s3notify_platform.protocols.notification_queue import Event, NotificationQueue, TopicSettings
from s3notify_platform.stores.open_store import queue_records


@pytest.mark.server
def test_reconcile_runs_until_a_signal(ministack):
    """If SIGTERM did not end the command with exit code 0, a service manager would count each stop as a failure.
    Without the warning about a missing signal, a user would not notice the mistyped prefix of a keyspace.
    """
    config = ministack.config(ministack.make_bucket())
    queue = NotificationQueue(queue_records(config))
    queue.topics.create("t", TopicSettings(shards=1))
    queue.push("t", Event(key="raw/a", bucket=config.bucket))
    command = [sys.executable, "-m", "s3notify_platform.cli", "reconcile", "--bucket", config.bucket]
    command += ["--endpoint-url", config.endpoint_url, "--keyspace", "ks/", "raw/"]
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | keys) as process:
        assert "--keyspace ks/: no signal is there yet" in process.stderr.readline()
        assert "running" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        _, printed = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "reconcile: passes=" in printed
