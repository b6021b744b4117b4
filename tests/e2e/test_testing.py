"""The tests of a project use the fixtures of `s3notify_platform.testing`. `pytest` runs these tests in the project's
folder.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from s3notify_platform.local.project import DEMO_FOLDER

pytestmark = [pytest.mark.spark, pytest.mark.server]

CONFTEST: Final = 'pytest_plugins = ["s3notify_platform.testing"]\n'

DEFS: Final = """\
type: s3notify_platform.S3NotifyComponent
attributes:
  name: orders
  bucket: acme-landing
  prefix: raw/orders/
  transform: defs.orders.assets.clean
  latest: {key: id, order_by: at}
  dynamodb: {records_table: records}
  s3: {region: eu-central-1, profile: acme}
"""

ASSETS: Final = """\
import dagster as dg
from pyspark.sql import functions as F

from s3notify_platform import Changes, s3_slot_asset

def clean(orders):
    return orders.withColumn("amount", F.when(F.col("state") != "cancelled", F.col("amount")))

@s3_slot_asset(source="orders")
def paid_orders(orders):
    return orders.where("amount > 0")

@dg.asset
def audit(orders: Changes) -> list:
    return sorted((row["_change_type"], row["id"]) for row in orders.rows.toLocalIterator())
"""

TESTS: Final = """\
import pytest

from defs.orders.assets import audit, paid_orders

def test_cancelled_orders_have_no_amount(s3notify_source):
    orders = s3notify_source("orders")
    orders.put("raw/orders/1.jsonl", '{"id": 1, "state": "cancelled", "amount": 5, "at": 1}')
    orders.commit()
    assert orders.rows()["amount"].to_pylist() == [None]
    orders.put("raw/orders/2.jsonl", '{"id": 1, "state": "new", "amount": 6, "at": 2}\\n{"id": "none"}')
    orders.commit()
    assert orders.rows("orders_latest")["amount"].to_pylist() == [6]
    (reject,) = orders.quarantine()
    assert reject["raw"] == b'{"id": "none"}'
    orders.delete("raw/orders/2.jsonl")
    orders.commit()
    assert orders.rows("orders_latest")["amount"].to_pylist() == [None]

def test_assets_of_the_project(s3notify_source):
    orders = s3notify_source("orders")
    orders.put("raw/orders/1.jsonl", '{"id": 1, "state": "new", "amount": 5, "at": 1}')
    orders.put("raw/orders/2.jsonl", '{"id": 2, "state": "new", "amount": 0, "at": 1}')
    orders.commit()
    assert [row["id"] for row in paid_orders.function(orders.frame()).collect()] == [1]
    first = orders.changes()
    assert audit(first) == [("insert", 1), ("insert", 2)]
    orders.delete("raw/orders/2.jsonl")
    orders.commit()
    assert audit(orders.changes(first.until)) == [("delete", 2)]

def test_another_source(s3notify_source):
    clicks = s3notify_source("clicks", prefix="raw/", format="csv", expect="a > 0")
    with pytest.raises(AssertionError, match="keys begin with 'raw/'"):
        clicks.put("other.csv", "a")
    clicks.put("raw/1.csv", "a\\n1\\n0\\n")
    clicks.commit()
    assert clicks.rows()["a"].to_pylist() == [1]
    assert [each["reason"] for each in clicks.quarantine()] == ["breaks the rule a > 0"]

def test_a_transform_that_fails(s3notify_source):
    orders = s3notify_source("orders", schema="id bigint")
    orders.put("raw/orders/1.jsonl", '{"id": 1}')
    with pytest.raises(Exception, match="transform of source 'orders'"):
        orders.commit()
"""

OF_DEMO: Final = """\
def test_the_day_of_an_order(s3notify_source):
    orders = s3notify_source("orders")
    orders.put("raw/orders/1.csv", "order_id,customer,amount,at\\n1,Ann,2.50,2026-01-31T12:00:00Z\\n")
    orders.commit()
    assert [str(day) for day in orders.rows()["day"].to_pylist()] == ["2026-01-31"]
"""


def passed(folder: Path, *options: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_fixtures_work_in_a_project_and_in_the_demo(tmp_path: Path) -> None:
    """A source must have the settings that a test declares. Without a declaration, the source must have the settings of
    the YAML, except for the bucket. Each source must have its own objects.
    """
    for name, text in {
        "pyproject.toml": "",
        "conftest.py": CONFTEST,
        "defs/orders/defs.yaml": DEFS,
        "defs/orders/assets.py": ASSETS,
        "test_orders.py": TESTS,
    }.items():
        file = tmp_path / "project" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert "4 passed" in passed(tmp_path / "project")
    demo = tmp_path / "demo"
    demo.mkdir()
    (demo / "conftest.py").write_text(CONFTEST)
    (demo / "test_demo.py").write_text(OF_DEMO)
    assert "1 passed" in passed(demo, S3NOTIFY_DEFS=str(DEMO_FOLDER))
