"""Each block of the guide that adds lines to a source's YAML works with the README's source, as its page says."""

import json
import shlex
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from tests.e2e.test_guide import in_namespace, ok
from tests.e2e.test_readme import in_terminal
from tests.support.documents import BUCKET, GUIDE, Place, block, blocks
from tests.support.waiting import until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.server,
    pytest.mark.spark,
    pytest.mark.thorough,
    pytest.mark.timeout(1200),
]

SECRET = "a secret of the user"
SPARK_CLASS = shlex.quote(str(Path(pyspark.__file__).parent / "bin" / "spark-class"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A bucket with one object."""
    with Place.running(tmp_path) as place:
        place.put("raw/orders/1.jsonl", b'{"customer": "Ann", "amount": 12.5}\n')
        yield place


def rows(place: Place, more: str = "") -> dict[str, dict[str, object]]:
    """The rows of a table by customer."""
    lines = [json.loads(line) for line in ok(place, f"s3notify rows orders {more}").splitlines()]
    return {line["customer"]: line for line in lines}


def test_the_inlet_of_the_yaml_announces_objects(place: Place) -> None:
    """Otherwise events from RGW or MinIO would be refused, and their objects would wait for the daily listing."""
    place = replace(place, environment={**place.environment, "S3NOTIFY_RECEIVER_SECRET": SECRET})
    place.write_source(options=block("inlet"))
    (place.folder / "tls").mkdir()
    ok(
        place,
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout tls/key.pem -out tls/cert.pem -days 1 -subj /CN=inlet "
        "-addext subjectAltName=IP:127.0.0.1",
    )
    ok(place, "s3notify ingest orders --once")
    place.put("raw/orders/2.jsonl", b'{"customer": "Bob", "amount": 3.0}\n')
    ok(place, "s3notify ingest orders --once")
    assert [*rows(place)] == ["Ann"]
    with inlet(place) as log:
        until(lambda: post(place, "raw/orders/2.jsonl") == 200, seconds=60, why=log.read_text)
    ok(place, "s3notify ingest orders --once")
    assert sorted(rows(place)) == ["Ann", "Bob"]


@contextmanager
def inlet(place: Place) -> Iterator[Path]:
    """Runs `s3notify inlet http`. Yields its log."""
    log = place.folder / "inlet.log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            ["s3notify", "inlet", "http"],
            cwd=place.folder, env=place.environment, stdout=sink, stderr=sink,
        ) as process,
    ):  # fmt: skip
        try:
            yield log
            assert process.poll() is None, log.read_text()
        finally:
            process.terminate()


def post(place: Place, key: str) -> int:
    """Posts the event of a new object, as a store does. Returns the status of the answer, or 0 without an answer."""
    found = place.client().head_object(Bucket=BUCKET, Key=key)
    described = {
        "key": key,
        "size": found["ContentLength"],
        "eTag": found["ETag"].strip('"'),
        "sequencer": "01",
    }
    event = {
        "eventName": "ObjectCreated:Put",
        "eventTime": found["LastModified"].strftime("%Y-%m-%dT%H:%M:%S.000Z"),
        "s3": {"bucket": {"name": BUCKET}, "object": described},
    }
    request = urllib.request.Request(
        "https://127.0.0.1:8086/", json.dumps({"Records": [event]}).encode(), {"Authorization": SECRET}
    )
    context = ssl.create_default_context(cafile=place.folder / "tls" / "cert.pem")
    try:
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:
            return int(answer.status)
    except OSError:
        return 0


def test_transform_and_slot_asset_make_their_rows(place: Place) -> None:
    """Otherwise a user who copies the code and the two lines of YAML would get no column and no table from them."""
    (code,) = (
        each.body for each in blocks((GUIDE / "dagster.md").read_text()) if "assets.py" in each.body[:30]
    )
    place.write_source(options=block("transform and slot asset"))
    (place.folder / code.splitlines()[0].removeprefix("# ")).write_text(code)
    place.put("raw/orders/2.jsonl", b'{"customer": "Bob", "amount": -3.0}\n')
    shown = "s3notify rows orders --asset paid_orders"
    with in_terminal(place, "s3notify dev", place.folder) as log:
        until(lambda: "Ann" in place.shell(shown)[1], seconds=400, why=lambda: log.read_text()[-3000:])
    assert [*rows(place, "--asset paid_orders")] == ["Ann"]
    assert {name: row["cleaned"] for name, row in rows(place).items()} == {"Ann": True, "Bob": False}


def test_a_batch_runs_on_the_cluster_of_the_yaml(place: Place) -> None:
    """Otherwise batches of a user with a cluster would fail, or would run on the user's own machine.

    A master and a worker run on loopback. Only for the test's processes, `spark-master` is a name of loopback.
    """
    place.write_source(options=block("Spark cluster"))
    hosts = place.folder / "hosts"
    hosts.write_text(Path("/etc/hosts").read_text() + "127.0.0.1 spark-master\n")
    start = f"SPARK_LOCAL_IP=127.0.0.1 {SPARK_CLASS} org.apache.spark.deploy"
    script = f"""
    mount --bind {hosts} /etc/hosts
    {start}.master.Master --host spark-master --port 7077 --webui-port 0 > master.log 2>&1 &
    {start}.worker.Worker --memory 5g --webui-port 0 --work-dir work spark://spark-master:7077 > worker.log 2>&1 &
    trap 'kill $(jobs -p)' EXIT
    SPARK_LOCAL_IP=127.0.0.1 s3notify ingest orders --once
    """
    ok(place, in_namespace(script))
    assert [*place.folder.glob("work/app-*/*/stderr")], "no executor ran in the worker"
    assert [*rows(place)] == ["Ann"]


def test_the_tables_of_the_yaml_are_made_and_used(place: Place) -> None:
    """Otherwise `s3notify init` would leave a table out, or batches would keep their records in the bucket."""
    place.write_source(options=block("DynamoDB"))
    ok(place, "yes | s3notify init orders")
    ok(place, "s3notify ingest orders --once")
    assert [*rows(place)] == ["Ann"]
    tables = place.client("dynamodb")
    assert sorted(tables.list_tables()["TableNames"]) == ["orders-leases", "orders-records"]
    assert tables.scan(TableName="orders-records")["Count"] > 0
