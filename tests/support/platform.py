"""The whole platform, as a person starts it: the embedded S3 server, Dagster's webserver and daemon, and the demo's
source.
"""

import json
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.dagster_dev import DagsterDev
from s3notify_platform.local.java import java_environment
from s3notify_platform.local.process import free_ports
from s3notify_platform.local.project import DEMO_FOLDER
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue
from s3notify_platform.source.location import Location
from s3notify_platform.source.settings import DEFS_VARIABLE
from s3notify_platform.stores.open_store import queue_records
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support.waiting import until

BUCKET = "s3notify-e2e"
KEYSPACE = "_s3notify/orders/keyspace/"


class Platform:
    """The actions of a test on a running platform."""

    def __init__(self, server: LocalS3Server, dagster: DagsterDev, proxy: FaultProxy) -> None:
        self.server = server
        self.proxy = proxy
        self.dagster = dagster
        self.store = S3ObjectStore(server.config(BUCKET))
        self.queue = NotificationQueue(queue_records(server.config(BUCKET)))
        self.publisher = QueuedPublisher(Publisher(self.store, prefix=KEYSPACE), self.queue, bucket=BUCKET)
        self.location = Location(name="orders", platform=server.config(BUCKET))

    def graphql(self, query: str, *, seconds: float = 60.0, **variables: Any) -> Any:
        """The webserver's answer, which must come within `seconds`. If the answer has an error, the test fails."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(
            f"{self.dagster.url}/graphql", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=seconds) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer["errors"]
        return answer["data"]

    def grid(self, asset: str) -> dict[str, set[str]]:
        """The partition grid of an asset: partition keys by status."""
        query = """
        query Grid($path: [String!]!) {
          assetNodeOrError(assetKey: {path: $path}) {
            ... on AssetNode {
              assetPartitionStatuses {
                ... on DefaultPartitionStatuses {
                  materializedPartitions failedPartitions materializingPartitions
                }
              }
            }
          }
        }"""
        found = self.graphql(query, path=[asset])["assetNodeOrError"]["assetPartitionStatuses"]
        return {status: set(keys) for status, keys in found.items()}

    def launch(self, job: str, assets: list[str], config: dict[str, Any]) -> str:
        """Starts a run for some of a job's assets, as a person does in the launchpad. Returns the run's id."""
        query = """
        mutation Launch($params: ExecutionParams!) {
          launchRun(executionParams: $params) {
            __typename
            ... on LaunchRunSuccess { run { runId } }
            ... on RunConfigValidationInvalid { errors { message } }
            ... on PythonError { message }
          }
        }"""
        params = {
            "selector": {
                "repositoryLocationName": "s3notify_platform.definitions",
                "repositoryName": "__repository__",
                "jobName": job,
                "assetSelection": [{"path": [asset]} for asset in assets],
            },
            "runConfigData": {"ops": {"orders_slots": {"config": config}}},
        }
        answer = self.graphql(query, params=params)["launchRun"]
        assert answer["__typename"] == "LaunchRunSuccess", answer
        return str(answer["run"]["runId"])

    def reload(self) -> None:
        """Reloads the definitions, as the button of the UI does."""
        query = """
        mutation Reload { reloadRepositoryLocation(repositoryLocationName: "s3notify_platform.definitions") {
          ... on WorkspaceLocationEntry { locationOrLoadError { __typename } } } }"""

        def reloaded() -> bool:
            with suppress(OSError, HTTPException):  # the code server is restarting
                found = self.graphql(query, seconds=300.0)["reloadRepositoryLocation"]
                return found.get("locationOrLoadError") == {"__typename": "RepositoryLocation"}
            return False

        self.until("the definitions are loaded again", reloaded, 600.0)

    def until(self, what: str, condition: Callable[[], bool], seconds: float = 180.0) -> None:
        """Waits until a condition of the running system is true. After `seconds`, fails with `what` in the message."""
        until(condition, seconds=seconds, why=lambda: f"{what}; {self.tail()}")

    def tail(self) -> str:
        """The last part of Dagster's log."""
        return self.dagster.log.read_text(errors="replace")[-3000:]


@contextmanager
def running(
    folder: Path,
    more: Mapping[str, str] | None = None,
    *,
    proxied: bool = False,
    way: Callable[[str], AbstractContextManager[str]] = nullcontext,
    ready_seconds: float = 120.0,
) -> Iterator[Platform]:
    """A running platform, whose data are in `folder`. `more` is added to Dagster's environment.

    `proxied`: Dagster's processes reach the server through `Platform.proxy`, and the test reaches it directly. `way`:
    converts the server's URL to the URL that Dagster's processes use.
    """
    with (
        LocalS3Server(folder / "s3") as server,
        FaultProxy(server.endpoint_url) as proxy,
        way(server.endpoint_url) as url,
    ):
        server.create_bucket(BUCKET)
        environment = {
            **server.environment(),
            "AWS_ENDPOINT_URL": proxy.url if proxied else url,
            **java_environment(),
            "S3NOTIFY_DEMO_BUCKET": BUCKET,
            DEFS_VARIABLE: str(DEMO_FOLDER),
            **(more or {}),
        }
        (port,) = free_ports(1, SYSTEM_CLOCK)
        with DagsterDev(folder / "dagster", port=port, environment=environment) as dagster:
            dagster.wait_ready(ready_seconds)
            yield Platform(server, dagster, proxy)
