"""The REST front on loopback, over a queue in memory, and boto3's clients for it.

boto3 has no parameters for Ceph's filters by metadata and tags. `ceph_models` adds these parameters to boto3's S3
model, like an example in Ceph's documentation.
"""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import boto3
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.credentials import Credentials

from s3notify_platform.channels.front.notification_front import FrontSettings, NotificationFront
from s3notify_platform.channels.inlets.http_server import Limits
from s3notify_platform.channels.inlets.intake import Intake
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.protocols.notification_queue import Event, NotificationQueue
from s3notify_platform.stores.memory import MemoryRecordStore
from tests.support.pushing import LOOPBACK

HTTP = {"push-endpoint": "http://127.0.0.1:9001"}
"""Attributes of a topic for HTTP."""

KEY_ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
BUCKET, REGION = "landing", "zonegroup1"
KNOWN_SECONDS = 0.01
"""Writers cache a topic for only this time, so that tests need not wait until writers see a change of the topic."""

_FILTER = {
    "type": "structure",
    "members": {"FilterRules": {"shape": "FilterRuleList", "locationName": "FilterRule"}},
}
_EXTRAS = {
    "version": 1.0,
    "merge": {
        "shapes": {
            "NotificationConfigurationFilter": {
                "members": {
                    "Metadata": {"shape": "S3MetadataFilter", "locationName": "S3Metadata"},
                    "Tags": {"shape": "S3TagsFilter", "locationName": "S3Tags"},
                }
            },
            "S3MetadataFilter": _FILTER,
            "S3TagsFilter": _FILTER,
            "FilterRuleName": {"type": "string", "enum": ["prefix", "suffix", "regex"]},
        }
    },
}


def ceph_models(folder: Path) -> str:
    """Writes the extension of boto3's model; returns the value for `AWS_DATA_PATH`."""
    file = folder / "s3" / "2006-03-01" / "service-2.sdk-extras.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(_EXTRAS))
    return str(folder)


class Front:
    """A running front."""

    def __init__(self, front: NotificationFront, queue: NotificationQueue) -> None:
        self.front = front
        self.queue = queue
        self.intake = Intake(queue, [], bucket=BUCKET, egress=LOOPBACK)
        self.reports: list[str] = []

    @property
    def url(self) -> str:
        host, port = self.front.address
        return f"http://{host}:{port}"

    def client(self, service: str, *, key: str = KEY_ID, secret: str = SECRET, **config: Any) -> Any:
        """boto3's client for `s3` or `sns`, without retries."""
        # A separate session, because the default session reads models only when the process first uses it.
        return boto3.session.Session().client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=key,
            aws_secret_access_key=secret,
            config=Config(retries={"total_max_attempts": 1}, **config),
        )

    def send(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Sends the request unchanged; returns status and text of the answer."""
        with contextlib.closing(http.client.HTTPConnection(*self.front.address, timeout=20)) as connection:
            connection.request(method, target, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def signed(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> dict[str, str]:
        """The headers of a signed request. Botocore signs the request, so a test can send requests that boto3 cannot
        make.
        """
        request = AWSRequest(method=method, url=self.url + target, data=body, headers=headers or {})
        auth, service = (SigV4Auth, "sns") if target == "/" else (S3SigV4Auth, "s3")
        auth(Credentials(KEY_ID, SECRET), service, REGION).add_auth(request)
        return dict(request.headers.items())

    def ask(self, method: str, target: str, body: bytes = b"") -> tuple[int, str]:
        """Sends a signed request."""
        return self.send(method, target, body, self.signed(method, target, body))

    def action(self, name: str, **parameters: str) -> tuple[int, str]:
        """Calls an action of the SNS interface."""
        body = urlencode({"Action": name, **parameters}).encode()
        headers = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}
        return self.send("POST", "/", body, self.signed("POST", "/", body, headers))

    def changed(self, *events: Event) -> None:
        """Reports these changes, as an inlet does."""
        assert {*self.intake.accept(events).outcomes} <= {"queued", "ignored"}

    def delivered(self, topic: str) -> dict[str, str]:
        """The configuration ids of the topic's entries, by key."""
        entries = self.queue.entries(topic, range(1000))
        return {entry.event.key: entry.event.configuration_id for entry in entries}


@contextlib.contextmanager
def running_front(
    limits: Limits | None = None, *, clock: Clock = SYSTEM_CLOCK, **settings: Any
) -> Iterator[Front]:
    """A front that runs until the `with` block ends. The front's key must be in the environment (`front_keys`)."""
    queue = NotificationQueue(MemoryRecordStore(), parallelism=1, clock=clock, known_seconds=KNOWN_SECONDS)
    front = NotificationFront(
        FrontSettings(port=0, **settings), queue, bucket=BUCKET, region=REGION, limits=limits
    )
    made, stop = Front(front, queue), threading.Event()
    thread = threading.Thread(target=front.run, args=(stop, made.reports.append))
    thread.start()
    try:
        assert front.ready.wait(20), made.reports
        yield made
    finally:
        stop.set()
        made.intake.direct.close()
        thread.join(20)
        assert not thread.is_alive()


def configured(front: Front, *configurations: dict[str, Any], bucket: str = BUCKET) -> None:
    front.client("s3").put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"TopicConfigurations": list(configurations)}
    )


def topic(front: Front, name: str = "prefix-1_topic", **attributes: str) -> str:
    return front.client("sns").create_topic(Name=name, Attributes=attributes or HTTP)["TopicArn"]
