"""A project folder with one source, on a real server. `s3notify init --events` runs in it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
from click.testing import CliRunner, Result

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.channels.service import ServiceContext, SourceKeyspace
from s3notify_platform.cli.main import main
from s3notify_platform.local.project import sources_of
from tests.support.servers import S3Server


class Project:
    """A folder with the source `orders`, whose bucket is on the server; commands run in the folder."""

    def __init__(self, server: S3Server, folder: Path, *, endpoint_url: str | None = None) -> None:
        self.server = server
        self.endpoint_url = endpoint_url or server.endpoint_url
        self.bucket = server.make_bucket()
        self.file = folder / "defs" / "orders" / "defs.yaml"
        self.file.parent.mkdir(parents=True)
        self.write("")

    def write(self, more: str) -> None:
        self.file.write_text(
            "# orders of the shop\ntype: s3notify_platform.S3NotifyComponent\nattributes:\n"
            f"  name: orders\n  bucket: {self.bucket}\n  prefix: raw/orders/   # all of them\n"
            f"  slots: 4\n  s3: {{endpoint_url: {self.endpoint_url}}}\n{more}"
        )

    def run(self, *arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(main, list(arguments), input=answer)

    def init(self, *more: str, answer: str | None = None) -> Result:
        return self.run("init", "orders", "--events", *more, answer=answer)

    def client(self, service: str) -> Any:
        return boto3.client(service, endpoint_url=self.server.endpoint_url, region_name="us-east-1")

    def notifications(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client("s3").get_bucket_notification_configuration(Bucket=self.bucket)
        return {name: value for name, value in found.items() if name != "ResponseMetadata"}

    def queues(self) -> list[str]:
        """The queues that exist for this source."""
        urls: list[str] = (
            self.client("sqs").list_queues(QueueNamePrefix="s3notify-orders-").get("QueueUrls", [])
        )
        return urls

    @contextmanager
    def inlet(self, name: str = "sqs") -> Iterator[Any]:
        """The inlet that the YAML declares, started as in Dagster."""
        (found,) = sources_of()
        source = found.source()
        keyspace = SourceKeyspace(
            signals=source.location.keyspace_prefix,
            prefix=source.input.prefix,
            slots=4,
            topic="orders",
            skips_hidden=True,
        )
        context = ServiceContext(
            name=name,
            queue=source.location.queue(),
            platform=source.location.platform,
            bucket=self.bucket,
            keyspaces=(keyspace,),
            excluded=source.own,
        )
        service = SERVICES[name].settings()(**found.checked.get(name)).build(context)
        stop = threading.Event()
        thread = threading.Thread(target=service.run, args=(stop, lambda _: None))
        thread.start()
        try:
            yield service
        finally:
            stop.set()
            thread.join(60)
            assert not thread.is_alive()
