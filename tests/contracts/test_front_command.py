"""`s3notify serve-notifications` as people run it: a process, a queue on a bucket or in a DynamoDB table, and the
clients boto3 and `aws`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest

from s3notify_platform.channels.publish.open_publisher import open_publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.open_store import queue_records
from tests.support.front import KEY_ID, SECRET
from tests.support.servers import S3Server
from tests.support.tables import create_record_table

pytestmark = pytest.mark.server


@contextmanager
def serving(config: S3Config, records: DynamoConfig | None = None) -> Iterator[str]:
    """Yields the address of the command; ends it by SIGTERM, without an error."""
    arguments = ["--bucket", config.bucket, "--endpoint-url", str(config.endpoint_url), "--port", "0"]
    arguments += ["--arn-region", "zonegroup1"]
    if records is not None:
        arguments += ["--records-table", records.table, "--dynamodb-endpoint-url", str(records.endpoint_url)]
    process = subprocess.Popen(
        [sys.executable, "-m", "s3notify_platform.cli", "serve-notifications", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "AWS_ACCESS_KEY_ID": str(config.access_key_id),
            "AWS_SECRET_ACCESS_KEY": str(config.secret_access_key),
            "AWS_REGION": config.region,
            "S3NOTIFY_FRONT_KEY_ID": KEY_ID,
            "S3NOTIFY_FRONT_SECRET": SECRET,
        },
    )
    assert process.stderr is not None
    try:
        said = next(found for line in process.stderr if (found := re.search(r"listening on (\S+)", line)))
        yield f"http://{said[1]}"
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 0, rest
        assert SECRET not in rest
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def csv_only(arn: str) -> dict[str, Any]:
    """A notification with a filter."""
    return {
        "Id": "csv",
        "TopicArn": arn,
        "Events": ["s3:ObjectCreated:*"],
        "Filter": {"Key": {"FilterRules": [{"Name": "suffix", "Value": ".csv"}]}},
    }


@pytest.mark.parametrize("in_table", [False, True], ids=["bucket", "table"])
def test_front_serves_from_the_command_line(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch, in_table: bool
) -> None:
    """If the front and the publisher used different queues, boto3 could create a notification, but no change
    would ever reach the topic. If the notification lost its filter, the topic would also get changes of other
    objects.
    """
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    config, records = (
        ministack.config(ministack.make_bucket()),
        ministack.table_config() if in_table else None,
    )
    if records is not None:
        create_record_table(records)
    with serving(config, records) as url:

        def client(service: str) -> Any:
            return boto3.client(
                service,
                region_name="eu-central-1",
                endpoint_url=url,
                aws_access_key_id=KEY_ID,
                aws_secret_access_key=SECRET,
            )

        attributes = {"push-endpoint": "https://hooks.example.com/s3"}
        arn = client("sns").create_topic(Name="hooks", Attributes=attributes)["TopicArn"]
        assert arn == "arn:aws:sns:zonegroup1::hooks"
        wanted = csv_only(arn)
        client("s3").put_bucket_notification_configuration(
            Bucket=config.bucket, NotificationConfiguration={"TopicConfigurations": [wanted]}
        )
        got = client("s3").get_bucket_notification_configuration(Bucket=config.bucket)
        assert got["TopicConfigurations"] == [wanted]
    publisher = open_publisher(
        "orders",
        bucket=config.bucket,
        endpoint_url=config.endpoint_url,
        region=config.region,
        keys={"access_key_id": config.access_key_id, "secret_access_key": config.secret_access_key},
        **(
            {"records_table": records.table, "dynamodb_endpoint_url": records.endpoint_url} if records else {}
        ),
    )
    publisher.put("raw/1.csv", b"1")
    publisher.put("raw/1.txt", b"1")
    queue = NotificationQueue(queue_records(config, table=records))
    (entry,) = queue.entries("hooks", range(1000))
    assert (entry.event.key, entry.event.configuration_id) == ("raw/1.csv", "csv")


def test_front_answers_the_aws_command(ministack: S3Server) -> None:
    """The requests and the parsers of `aws` differ from the requests and the parsers of boto3. Otherwise a person could
    not set up a topic and a notification in a terminal.
    """
    config = ministack.config(ministack.make_bucket())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")} | {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    with serving(config) as url:

        def aws(*arguments: str) -> Any:
            ran = subprocess.run(
                [sys.executable, "-m", "awscli", "--endpoint-url", url, "--output", "json", *arguments],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert ran.returncode == 0, ran.stderr
            return json.loads(ran.stdout or "null")

        bucket = ("--bucket", config.bucket)
        endpoint = ("--attributes", "push-endpoint=https://hooks.example.com/s3")
        arn = "arn:aws:sns:zonegroup1::hooks"
        assert aws("sns", "create-topic", "--name", "hooks", *endpoint) == {"TopicArn": arn}
        assert aws("sns", "list-topics") == {"Topics": [{"TopicArn": arn}]}
        wanted = {"TopicConfigurations": [csv_only(arn)]}
        put = ("--notification-configuration", json.dumps(wanted))
        assert aws("s3api", "put-bucket-notification-configuration", *bucket, *put) is None
        assert aws("s3api", "get-bucket-notification-configuration", *bucket) == wanted
