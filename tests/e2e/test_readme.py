"""README's shell, YAML and Spark run unchanged, on loopback, in the order in which a new user types them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.test_dg import DEFINITIONS, PYPROJECT
from tests.e2e.test_supervision import of_folder
from tests.support.only import PROJECT
from tests.support.readme import BUCKET, Place, block
from tests.support.servers import running_ministack
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.server, pytest.mark.thorough, pytest.mark.timeout(1200)]

UI = "http://127.0.0.1:3000/server_info"
KEY = "raw/orders/2.jsonl"

CODE = """
from s3notify_platform import s3_slot_asset

def clean(orders):
    return orders.withColumn("cleaned", orders.order_id > 0)

@s3_slot_asset(source="orders")
def paid_orders(orders):
    return orders
"""
VALIDATE = """
import dagster, pathlib, s3notify_platform.definitions as ours
found = ours.load(pathlib.Path("defs"))
dagster.Definitions.validate_loadable(found)
print(*sorted(key.path[-1] for key in found.resolve_asset_graph().get_all_asset_keys()))
"""
BEFORE_SPARK = """
from tests.support.spark import start_spark
spark = start_spark(master="local[2]")
"""
AFTER_SPARK = """
rows = sorted(row.order_id for row in table.collect())
for name, stream in (("came", came), ("changed", changes)):
    query = stream.writeStream.format("memory").queryName(name).option("checkpointLocation", f"checkpoint-{name}")
    query.trigger(availableNow=True).start().awaitTermination()
    seen = sorted(row.order_id for row in spark.sql(f"select order_id from {name}").collect())
    assert seen == rows, seen
print("FOUND", rows, seen)
spark.stop()
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "server").mkdir()
    (tmp_path / "here").mkdir()
    with running_ministack(tmp_path / "server") as server:
        yield Place.of(server, tmp_path / "here")


def shell(place: Place, script: str, *, folder: Path | None = None) -> tuple[int, str]:
    """Runs the script; returns exit code and output."""
    done = subprocess.run(
        ["bash", "-ec", script], cwd=folder or place.folder, env=place.environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False, timeout=600,
    )  # fmt: skip
    return done.returncode, done.stdout


def serves() -> bool:
    with suppress(OSError), urllib.request.urlopen(UI, timeout=5) as answer:
        return "dagster_version" in json.load(answer)
    return False


@contextmanager
def in_terminal(place: Place, script: str, folder: Path) -> Iterator[Path]:
    """Runs a command that ends by Ctrl-C, until Dagster's UI answers; returns its log."""
    assert not serves(), "another process uses the README's port"
    log = place.folder / "terminal.log"
    with log.open("wb") as sink:
        running = subprocess.Popen(
            ["bash", "-ec", script], cwd=folder, env=place.environment, stdout=sink, stderr=sink,
            start_new_session=True,
        )  # fmt: skip
    try:
        until(
            lambda: running.poll() is not None or serves(), seconds=300, why=lambda: log.read_text()[-3000:]
        )
        assert running.poll() is None, log.read_text()[-3000:]
        yield log
    finally:
        with suppress(ProcessLookupError):
            # Like a terminal: to all processes in its foreground.
            os.killpg(running.pid, signal.SIGINT)
        running.wait(120)
        until(lambda: not of_folder(folder), seconds=60, why=lambda: json.dumps(of_folder(folder), indent=1))


def test_readme_demo_runs_in_a_clone(tmp_path: Path) -> None:
    """The environment has the packages that pip would install."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT.parent / name, clone)
    ignored = shutil.ignore_patterns("__pycache__")
    package = "s3notify_platform"
    shutil.copytree(PROJECT.parent / package, clone / package, ignore=ignored)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "DAGSTER_"))}
    there = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
    }
    code, said = shell(Place(folder=clone, environment=kept | there), block("demo"))
    assert code == 0, said[-3000:]
    assert (clone / ".venv/bin/s3notify").exists()


def test_readme_runs_without_dagster(place: Place) -> None:
    """Policy, store and platform are set up; a signalled file is in the table, and Spark reads it."""
    place.write_source()
    lines = block("without Dagster").splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("s3notify dev"))
    code, said = shell(place, "\n".join(lines[:at]))
    assert code == 0, said
    assert f"arn:aws:s3:::{BUCKET}" in said
    assert "commit: native" in said
    (place.folder / "2.jsonl").write_text('{"order_id": 2}\n')
    place.put("raw/orders/1.jsonl", b'{"order_id": 1}\n')
    with in_terminal(place, lines[at], place.folder) as log:
        (put,) = (line for line in lines[at + 1 :] if line.startswith("aws "))
        (explain,) = (line for line in lines[at + 1 :] if line.startswith("s3notify explain"))
        home = ". .venv/bin/activate; export DAGSTER_HOME=.s3notify/home\n"
        assert home.strip() in "\n".join(lines), "the README says so"
        code, said = shell(place, home + put)
        assert code == 0, said
        until(
            lambda: shell(place, home + explain)[0] == 0,
            seconds=400,
            why=lambda: shell(place, home + explain)[1] + log.read_text()[-2000:],
        )
        assert (place.folder / ".s3notify/home/dagster.log").exists()
    (place.folder / "read.py").write_text(BEFORE_SPARK + block("Spark") + AFTER_SPARK)
    code, said = shell(place, "python read.py")
    assert code == 0, said[-3000:]
    assert "FOUND [1, 2] [1, 2]" in said


def test_readme_runs_in_a_dagster_project(place: Place) -> None:
    """The scaffolded source equals the YAML's; the store is checked, and `dg dev` serves the source."""
    project = place.folder / "shop"
    package = project / "src" / "shop"
    (package / "defs").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").touch()
    (package / "defs" / "__init__.py").touch()
    (package / "definitions.py").write_text(DEFINITIONS)
    more = {
        "PYTHONPATH": f"{place.environment['PYTHONPATH']}:{project / 'src'}",
        "DG_CLI_CONFIG": str(project / "dg.toml"),
        "PYTHONWARNINGS": "ignore",
        "DAGSTER_HOME": str(place.folder / "home"),
    }
    (place.folder / "home").mkdir()
    there = Place(folder=place.folder, environment={**place.environment, **more})
    install, scaffold, serve = block("in a Dagster project").splitlines()
    assert install.startswith("pip install "), "the packages of the tests' environment"
    code, said = shell(there, scaffold, folder=project)
    assert code == 0, said
    with in_terminal(there, serve, project) as log:
        assert "commit: native" in log.read_text()


def test_readme_options_load_together(place: Place) -> None:
    """The definitions load with all options, and a batch follows them."""
    file = place.write_source(options=block("options"))
    (file.parent / "assets.py").write_text(CODE)
    versions = {"Status": "Enabled"}  # tags need versions
    place.client().put_bucket_versioning(Bucket=BUCKET, VersioningConfiguration=versions)
    place.put(
        "raw/orders/dt=2026-01-01/region=eu/1.jsonl",
        b'{"order_id": 1, "amount": "12.30", "at": "01.01.2026 00:00"}\n{"order_id": "x", "amount": 1}\n',
    )
    place.put("raw/orders/other.csv", b"order_id\n9\n")
    code, said = shell(place, f"python -W ignore -c '{VALIDATE}'")
    assert code == 0, said
    assert {"orders", "paid_orders"} <= {*said.split()}
    code, said = shell(place, "s3notify ingest orders --once")
    assert code == 0, said[-3000:]
    code, said = shell(place, "s3notify explain raw/orders/dt=2026-01-01/region=eu/1.jsonl --json")
    assert code == 0, said
    tags = place.client().get_object_tagging(Bucket=BUCKET, Key="raw/orders/dt=2026-01-01/region=eu/1.jsonl")
    assert tags["TagSet"] == [{"Key": "archive", "Value": "yes"}]
    script = BEFORE_SPARK + block("Spark").split("came =")[0] + "print('FOUND', *table.toJSON().collect())\n"
    (place.folder / "read.py").write_text(script)
    code, said = shell(place, "python read.py")
    assert code == 0, said[-3000:]
    (line,) = (line for line in said.splitlines() if line.startswith("FOUND "))
    rows = sorted(map(json.loads, line.removeprefix("FOUND ").replace("} {", "}\n{").splitlines()), key=str)
    assert {(row["dt"], row["region"]) for row in rows} == {("2026-01-01", "eu")}
    assert [(row.get("order_id"), row.get("amount"), row.get("cleaned")) for row in rows] == [
        (1, 12.3, True),
        (None, 1.0, None),
    ]
    assert [row.get("_rescued") for row in rows] == [None, '{"order_id":"x"}']
