"""The guide's code runs as it is written, page by page, with a source that has rows and a record in quarantine."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.test_units import service
from tests.support.documents import GUIDE, Block, Place, block, blocks
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.thorough,
    pytest.mark.timeout(1200),
]

PAGES = sorted(
    page.name for page in GUIDE.glob("*.md") if any(not each.name for each in blocks(page.read_text()))
)
FOREVER = "# until Ctrl-C"

LOAD = """
import dagster as dg, pathlib, s3notify_platform.definitions as ours
found = ours.load(pathlib.Path("defs"))
dg.Definitions.validate_loadable(found)
print("ASSETS", *sorted(key.path[-1] for key in found.resolve_asset_graph().get_all_asset_keys()))
"""
MATERIALIZE = """
own = [dg.AssetKey(name) for name in ("order_count", "audit")]
assert found.resolve_implicit_global_asset_job_def().execute_in_process(asset_selection=own).success
"""
AFTER_SPARK = """
rows = sorted(row.customer for row in table.collect())
for name, stream in (("came", came), ("changed", changes)):
    query = stream.writeStream.format("memory").queryName(name).option("checkpointLocation", f"checkpoint-{name}")
    query.trigger(availableNow=True).start().awaitTermination()
    seen = sorted(row.customer for row in spark.sql(f"select customer from {name}").collect())
    assert seen == rows, seen
print("FOUND", rows)
spark.stop()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """The README's source after its first batch: a row, and a record in quarantine."""
    with Place.running(tmp_path) as place:
        place.write_source()
        place.put("raw/orders/1.jsonl", b'{"customer": "Ann", "amount": 12.5}\n')
        place.put("raw/orders/bad.jsonl", b"no JSON\n")
        ok(place, "s3notify ingest orders --once")
        yield place


def ok(place: Place, script: str) -> str:
    code, said = place.shell(script)
    assert code == 0, f"{script}\n{said[-4000:]}"
    return said


@contextmanager
def running(place: Place, line: str) -> Iterator[None]:
    """Runs a command that commits a new object, until Ctrl-C. After Ctrl-C, the command must end with exit code 0."""
    place.put("raw/orders/live.jsonl", b'{"customer": "Eve", "amount": 1.5}\n')
    ok(place, "s3notify signal raw/orders/live.jsonl")
    log = place.folder / "running.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"], cwd=place.folder, env=place.environment, stdout=sink, stderr=sink,
            start_new_session=True,
        )  # fmt: skip
    try:
        explain = "s3notify explain raw/orders/live.jsonl"
        until(lambda: place.shell(explain)[0] == 0, seconds=200, why=lambda: log.read_text()[-3000:])
        yield
        assert process.poll() is None, log.read_text()[-3000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 0, log.read_text()[-3000:]


def run(place: Place, each: Block, stack: ExitStack) -> None:
    """Runs one block, or writes the file that its first line names."""
    first = each.body.splitlines()[0]
    if each.language in ("yaml", "python") and first.startswith("# "):
        file = place.folder / first.removeprefix("# ")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(each.body)
    elif each.language == "python":
        (place.folder / "block.py").write_text(each.body)
        ok(place, f"{sys.executable} block.py")
    else:
        assert each.language == "sh", each
        for line in each.body.replace("\\\n", " ").splitlines():
            if line.endswith(FOREVER):
                stack.enter_context(running(place, line.removesuffix(FOREVER)))
            else:
                ok(place, line)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs(place: Place, page: str) -> None:
    """Otherwise a user who copies a block of the guide would get an error. Blocks with a name have tests of their
    own.
    """
    with ExitStack() as stack:
        for each in blocks((GUIDE / page).read_text()):
            if not each.name:
                run(place, each, stack)


def test_assets_of_the_dagster_page_get_rows_and_changes(place: Place) -> None:
    """Otherwise the two assets of the page would load without errors, but would not get the rows and changes of the
    table.
    """
    with ExitStack() as stack:
        for each in blocks((GUIDE / "dagster.md").read_text()):
            if not each.name:
                run(place, each, stack)
    said = ok(place, f"python -W ignore -c '{LOAD}{MATERIALIZE}'")
    assert "ASSETS" in said
    assert "insert new raw/orders/1.jsonl" in said


def test_assets_are_tested_as_the_testing_page_says(place: Place) -> None:
    """Otherwise the calls in the test on this page would not fit the assets on the page about Dagster."""
    with ExitStack() as stack:
        for each in blocks((GUIDE / "dagster.md").read_text()):
            if not each.name and each.language == "python":
                run(place, each, stack)
    (place.folder / "conftest.py").write_text('pytest_plugins = ["s3notify_platform.testing"]\n')
    (place.folder / "test_assets.py").write_text(block("test of assets"))
    ok(place, "pytest -q test_assets.py")


def test_the_service_keeps_the_table_up_to_date(place: Place) -> None:
    """The command of the example must commit new objects, and systemd must accept the unit. Only for the test's
    processes, the folder is at the unit's path.
    """
    program = place.folder / ".venv" / "bin" / "s3notify"
    program.parent.mkdir(parents=True)
    program.symlink_to(Path(sys.executable).parent / "s3notify")
    unit = place.folder / "orders-ingest.service"
    unit.write_text(block("service"))
    said = service(unit)
    there = said["WorkingDirectory"]
    at = f"mount -t tmpfs none {Path(there).parent} && mkdir {there} && mount --bind . {there} && cd {there} &&"
    if shutil.which("systemd-analyze"):
        ok(place, in_namespace(f"{at} systemd-analyze verify ./{unit.name}"))
    with running(place, in_namespace(f"{at} exec {said['ExecStart']}")):
        pass


def in_namespace(script: str) -> str:
    """A command that runs a script whose mounts no other process has."""
    return f"unshare --mount --map-root-user bash -ec {shlex.quote(script)}"


def test_spark_reads_table_and_streams(place: Place) -> None:
    """The table, the stream of new rows, and the stream of changes must each have exactly the committed rows."""
    ok(place, "s3notify topics create orders")
    (place.folder / "read.py").write_text(block("Spark") + AFTER_SPARK)
    assert "FOUND ['Ann']" in ok(place, "python read.py")
