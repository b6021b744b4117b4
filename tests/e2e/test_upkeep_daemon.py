"""The upkeep's sensor with a real daemon. The sensor requests runs of two jobs, and Dagster's UI does not list one of
these jobs.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import yaml

from s3notify_platform.local.project import DEMO_FOLDER
from s3notify_platform.source.settings import DEFS_VARIABLE
from tests.support.platform import Platform, running

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

AT = {"repositoryLocationName": "s3notify_platform.definitions", "repositoryName": "__repository__"}
SENSOR = AT | {"sensorName": "orders_upkeep"}
RUNS = """query Runs($filter: RunsFilter!) {
  runsOrError(filter: $filter) { ... on Runs { results { runId jobName status tags { key value } } } }
}"""
CURSOR = """query Cursor($selector: SensorSelector!) {
  sensorOrError(sensorSelector: $selector) {
    ... on Sensor { sensorState { typeSpecificData { ... on SensorData { lastCursor } } } }
  }
}"""
SET_CURSOR = """mutation Set($selector: SensorSelector!, $cursor: String) {
  setSensorCursor(sensorSelector: $selector, cursor: $cursor) { __typename }
}"""
TERMINATE = """mutation Terminate($run: String!) { terminateRun(runId: $run) { __typename } }"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    folder = tmp_path_factory.mktemp("upkeep")
    given = yaml.safe_load((DEMO_FOLDER / "demo" / "defs.yaml").read_text())
    for own in ("transform", "slot_assets"):
        del given["attributes"][own]
    given["attributes"] |= {"deliver": {}}
    (folder / "upkept" / "orders").mkdir(parents=True)
    (folder / "upkept" / "orders" / "defs.yaml").write_text(yaml.safe_dump(given))
    with running(folder / "home", {DEFS_VARIABLE: str(folder / "upkept")}) as started:
        yield started


def runs(platform: Platform, job: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = platform.graphql(RUNS, filter={"pipelineName": job})["runsOrError"][
        "results"
    ]
    return found


def serving(platform: Platform) -> set[str]:
    """The runs of the service `deliver` that have started."""
    tag = {"key": "s3notify/service", "value": "deliver"}
    return {
        run["runId"]
        for run in runs(platform, "orders_services")
        if run["status"] == "STARTED" and tag in run["tags"]
    }


def test_a_service_that_is_terminated_is_started_again(platform: Platform) -> None:
    """Otherwise nothing would be delivered until a person notices."""
    platform.until("delivery", lambda: len(serving(platform)) == 1)
    (first,) = serving(platform)
    platform.graphql(TERMINATE, run=first)
    platform.until("delivery again", lambda: bool(serving(platform) - {first}))


def test_the_sweep_runs_when_it_is_due(platform: Platform) -> None:
    """The daemon must find the sweep's job, although the sensor has another job, too."""

    def due_again() -> bool:
        found = platform.graphql(CURSOR, selector=SENSOR)["sensorOrError"]["sensorState"]["typeSpecificData"]
        with suppress(TypeError):  # the sensor has not ticked yet
            cursor = json.loads(found["lastCursor"])
            if cursor["due_at"] > 1:
                platform.graphql(SET_CURSOR, selector=SENSOR, cursor=json.dumps(cursor | {"due_at": 1.0}))
        return bool(swept())

    def swept() -> list[dict[str, Any]]:
        return runs(platform, "__anonymous_asset_job_orders_upkeep")

    # A tick that ends after `SET_CURSOR` overwrites the changed cursor, so the cursor is changed repeatedly.
    platform.until("the request", due_again)
    platform.until("the sweep", lambda: swept()[-1]["status"] == "SUCCESS")
    assert len(serving(platform)) == 1
