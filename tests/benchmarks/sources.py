"""(13) A hundred sources in one development home: the seconds between the polls of each source, and the resources that
all sources need.

Two sensors of each source are on: the source's own sensor, and the sensor of the upkeep. Nothing changes in the
buckets. The cursor of each source says that the first batch is done. A first batch would find no object. A tick polls
when it begins. A watching tick also polls until it ends. The gaps are the times between the ticks of a source. Gaps are
measured for a minute, after a first minute as a warm-up.
"""

import time
from pathlib import Path
from statistics import median

import yaml
from dagster import DagsterInstance

from s3notify_platform.engine.batch.batches import SensorState
from s3notify_platform.engine.batch.list_or_follow import topic_epoch
from s3notify_platform.local.project import DEMO_FOLDER
from s3notify_platform.protocols.notification_queue import TopicUser
from s3notify_platform.source.settings import DEFS_VARIABLE
from tests.benchmarks.apart import peak
from tests.benchmarks.figures import Figure, Seconds, seconds, short
from tests.benchmarks.lake import followed
from tests.benchmarks.processes import tree
from tests.support.platform import BUCKET, Platform, running
from tests.support.sources import source_of

WATCHED_SECONDS = 60.0
LATE_SECONDS = 5.0
SENSORS = ("sensor", "upkeep")
PROCESSES = {"daemon": b"dagster._daemon", "code server": b"grpc", "webserver": b"dagster_webserver"}
_LOADED = "{ repositoriesOrError { ... on RepositoryConnection { nodes { sensors { name } } } } }"
_CURSOR = """mutation Cursor($selector: SensorSelector!, $cursor: String) {
  setSensorCursor(sensorSelector: $selector, cursor: $cursor) { __typename }
}"""
_START = (
    """mutation Start($selector: SensorSelector!) { startSensor(sensorSelector: $selector) { __typename } }"""
)


def run(folder: Path, *, small: bool) -> list[Figure]:
    count, watched = (5, 15.0) if small else (100, WATCHED_SECONDS)
    names = [f"source_{n:03d}" for n in range(count)]
    _define(folder / "many", names)
    with (
        seconds() as starting,
        running(folder / "home", {DEFS_VARIABLE: str(folder / "many")}, ready_seconds=600) as platform,
        DagsterInstance.from_config(str(platform.dagster.home)) as instance,
    ):
        platform.until("sources", lambda: _sensors(platform) >= len(SENSORS) * count, 600)
        started = starting()
        for name in names:
            _start(platform, name)
        time.sleep(watched)
        with seconds() as took:
            time.sleep(watched)
        spent = took()
        gaps, failed = _gaps(instance, names, time.time() - spent)
        memory = {name: _memory(platform, command) for name, command in PROCESSES.items()}
    return _figures(count, started=started, spent=spent, gaps=gaps, failed=failed, memory=memory)


def _define(folder: Path, names: list[str]) -> None:
    """Writes sources like the demo's source, without the demo's own parts. The sources are not started yet."""
    given = yaml.safe_load((DEMO_FOLDER / "demo" / "defs.yaml").read_text())
    for name in names:
        attributes = given["attributes"] | {"name": name, "prefix": f"raw/{name}/", "running": False}
        for own in ("transform", "slot_assets", "description", "interval_seconds"):
            del attributes[own]
        (folder / name).mkdir(parents=True)
        (folder / name / "defs.yaml").write_text(yaml.safe_dump(given | {"attributes": attributes}))


def _sensors(platform: Platform) -> int:
    nodes = platform.graphql(_LOADED)["repositoriesOrError"].get("nodes", ())
    return sum(len(node["sensors"]) for node in nodes)


def _start(platform: Platform, name: str) -> None:
    """Starts the sensors of a source. The source's own sensor gets the cursor that a first batch would leave."""
    config = platform.server.config(BUCKET)
    at = {"bucket": config, "platform": config, "commit": "native"}
    source = followed(source_of(name=name, prefix=f"raw/{name}/", format="jsonl", **at))
    user = TopicUser(slots=source.location.slots)
    enumerated = topic_epoch(source.location.queue(), name, user)
    cursor = SensorState(epoch="bench", enumerated=enumerated).dumps()
    for sensor in SENSORS:
        selector = {
            "repositoryLocationName": "s3notify_platform.definitions",
            "repositoryName": "__repository__",
            "sensorName": f"{name}_{sensor}",
        }
        if sensor == "sensor":
            answer = platform.graphql(_CURSOR, selector=selector, cursor=cursor)["setSensorCursor"]
            assert answer["__typename"] == "Sensor", answer
        answer = platform.graphql(_START, selector=selector)["startSensor"]
        assert answer["__typename"] == "Sensor", answer


def _gaps(instance: DagsterInstance, names: list[str], since: float) -> tuple[dict[str, list[float]], int]:
    """For each source, the seconds without a tick, including the gap before the first tick and the gap after the last
    tick. Also returns the number of failed ticks.
    """
    found, failed = {}, 0
    now = time.time()
    for state in instance.all_instigator_state():
        if (name := state.instigator_name.removesuffix("_sensor")) in names:
            ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, after=since)
            failed += sum(tick.error is not None for tick in ticks)
            spans = sorted((tick.timestamp, tick.end_timestamp or now) for tick in ticks)
            begins, ends = [begin for begin, _ in spans] + [now], [since] + [end for _, end in spans]
            found[name] = [begin - end for begin, end in zip(begins, ends, strict=True)]
    assert found.keys() == {*names}
    return found, failed


def _memory(platform: Platform, command: bytes) -> int:
    assert platform.dagster.pid is not None
    return sum(peak(process.pid) for process in tree(platform.dagster.pid) if command in process.command)


def _figures(
    count: int,
    *,
    started: Seconds,
    spent: Seconds,
    gaps: dict[str, list[float]],
    failed: int,
    memory: dict[str, int],
) -> list[Figure]:
    every = [gap for of in gaps.values() for gap in of]
    late = sum(max(of) > LATE_SECONDS for of in gaps.values())
    cores = f"{spent.cpu / spent:.1f} cores, server {spent.server / spent:.1f}"
    shown = ", ".join(f"{name} {taken >> 20:,} MB" for name, taken in memory.items())
    rows = {
        f"{count} sources, nothing changes: without a poll": f"median {short(median(every))}, at most "
        f"{short(max(every))}; {late} sources for more than {LATE_SECONDS:.0f} s, {failed} ticks failed; {cores}",
        f"{count} sources: until all are loaded": short(started),
        f"{count} sources: peak memory": shown,
    }
    return [Figure(what=what, ours=ours, instead="–", ratio="–") for what, ours in rows.items()]
