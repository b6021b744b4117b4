"""Schema changes are reported by the batch that brings them, and by a check."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.maintenance.set_types import SetTypes
from s3notify_platform.orchestration.source_clients import SourceClients
from s3notify_platform.spark.spark_jobs import spark_ingest
from s3notify_platform.stores.counting import CountingStore
from tests.support.site import Site


def described(site: Site) -> str | None:
    """The description of the check's result, from the last batch."""
    key = dg.AssetCheckKey(dg.AssetKey(site.name), "schema_changes")
    (record,) = site.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    assert record.evaluation is not None
    return record.evaluation.description


def said(site: Site, *, again: bool = False) -> tuple[bool, dict[str, Any]]:
    """The check's result and metadata, from the last batch. With `again`, first executes the check as a person does."""
    key = dg.AssetCheckKey(dg.AssetKey("orders"), "schema_changes")
    records = site.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
    found = site.sweep()["schema_changes"] if again else records[0].evaluation
    assert found is not None
    assert found.severity == dg.AssetCheckSeverity.WARN
    return found.passed, {name: value.value for name, value in found.metadata.items()}


def test_the_check_passes_for_added_fields_and_fails_for_mismatches(site_of: Callable[..., Site]) -> None:
    """The metadata must list the added fields. For values that do not fit, the metadata must list the columns, with the
    number of values. The description must name the commands that help: otherwise a reader of the UI could not go on.
    """
    site = site_of(schema=None)
    site.write(1)
    site.settle()
    assert "batch_schema_added" not in site.batch()
    passed, found = said(site)
    assert (passed, found["added"], found["mismatches"]) == (True, {}, {})

    site.write(2, body=b'{"id": 2, "fresh": {"x": 1}}\n')
    site.settle()
    assert site.batch()["batch_schema_added"] == {"fresh": "struct<x bigint>"}
    columns = {column.name: column.type for column in site.metadata(2)["dagster/column_schema"].columns}
    assert columns["fresh"] == "struct<x:bigint>"
    passed, found = said(site)
    assert (passed, found["added"]) == (True, {"fresh": "struct<x bigint>"})
    assert found["batch"] == site.metadata(2)["batch"]
    assert found["table_version"] == site.metadata(2)["table_version"]

    site.write(3, body=b'{"id": "three"}\n{"id": 3.5}\n{"id": 3, "fresh": {"x": true}}\n{"id": 4}\n')
    site.settle()
    assert site.batch()["batch_mismatches"] == {"id": 2, "fresh.x": 1}
    assert site.metadata(3)["values_that_do_not_fit"] == 3
    passed, found = said(site)
    assert (passed, found["added"], found["mismatches"]) == (False, {}, {"id": 2, "fresh.x": 1})
    assert described(site) == (
        "Values that do not fit their columns: id (2), fresh.x (1). To see their records: `s3notify quarantine list "
        "orders`. To change a type: `s3notify schema set orders 'id TYPE'`"
    )
    assert said(site, again=True)[0] is False, "there is no new batch"
    site.write(4)
    site.settle()
    assert said(site)[0]


def test_fields_added_by_a_run_outside_dagster_are_shown(site_of: Callable[..., Site]) -> None:
    """If a person executes the check, it must show fields that a run outside of Dagster has added."""
    site = site_of(schema=None)
    site.write(1)
    site.settle()
    source = site.io.settle_commit_mode()
    site.write_silently(2, body=b'{"id": 2, "late": true}\n')
    spark_ingest(site.io.spark.spark_session, source).run([Slot(2)], batch="elsewhere", run="elsewhere")
    passed, found = said(site, again=True)
    assert (passed, found["added"], found["added_elsewhere"]) == (True, {}, {"late": "boolean"})


def test_rescued_values_and_unnamed_fields_are_counted(site_of: Callable[..., Site]) -> None:
    """Otherwise a user would not notice lost data. One source rescues values; the declared schema of the other source
    lacks a field.
    """
    rescuing = site_of(mismatches="rescue")
    rescuing.write(1, body=b'{"id": 1, "amount": "much"}\n')
    rescuing.settle()
    (row,) = rescuing.io.load([1]).select("id", "amount", "_rescued").toArrow().to_pylist()
    assert row == {"id": 1, "amount": None, "_rescued": '{"amount":"much"}'}
    assert rescuing.batch()["batch_mismatches"] == {"amount": 1}
    assert described(rescuing) == (
        "Values that do not fit their columns: amount (1). The column `_rescued` keeps these values. To change a type: "
        "`s3notify schema set orders 'amount TYPE'`"
    )

    given = site_of(name="given")
    given.write(1, body=b'{"id": 1, "note": "x"}\n{"id": 2, "note": null}\n')
    given.settle()
    assert given.batch()["batch_unnamed"] == {"note": 1}
    assert given.metadata(1)["values_without_a_column"] == 1


def test_rows_that_break_a_rule_are_counted(site_of: Callable[..., Site]) -> None:
    """Rows that break a rule must be counted by rule and by slot, whether these rows are quarantined or stay."""
    site = site_of(expect="positive: amount >= 0", expect_warn="small: amount < 10")
    site.write(1, body=b'{"id": 1, "amount": -1}\n{"id": 2, "amount": 1}\n{"id": 3}\n')
    site.write(2, body=b'{"id": 4, "amount": 10}\n')
    site.settle()
    assert site.rows() == {1: [2, 3], 2: [4]}
    assert site.batch()["batch_broken"] == {"positive": 1, "small": 1}, "the summary has the batch's numbers"
    assert (site.metadata(1)["rows_that_break_a_rule"], site.metadata(2)["rows_that_break_a_rule"]) == (1, 1)
    assert (site.metadata(1)["records_rejected"], site.metadata(2)["records_rejected"]) == (1, 0)


def test_the_check_fails_for_rows_that_break_a_rule_that_warns(site_of: Callable[..., Site]) -> None:
    """The description must name the rules of `expect_warn` with the number of rows. Rules of `expect` do not count,
    because the check `quarantine` reports their rows.
    """
    site = site_of(expect="positive: amount >= 0", expect_warn="small: amount < 10; id < 5")
    site.write(1, body=b'{"id": 1, "amount": -1}\n')
    site.settle()
    assert said(site)[0]
    site.write(2, body=b'{"id": 2, "amount": 10}\n{"id": 6, "amount": 11}\n{"id": "x"}\n')
    site.settle()
    assert site.rows() == {2: [2, 6]}
    passed, found = said(site)
    assert (passed, found["mismatches"], found["broken"]) == (False, {"id": 1}, {"small": 2, "id < 5": 1})
    text = described(site)
    assert text is not None
    assert text.startswith(
        "Rows that break a rule of `expect_warn`: small (2), id < 5 (1). Values that do not fit "
    )
    passed, found = said(site, again=True)
    assert (passed, found["broken"]) == (False, {"small": 2, "id < 5": 1}), "there is no new batch"
    site.write(2, 3)
    site.settle()
    assert said(site)[0]


def test_changed_types_are_refused_before_any_run(site_of: Callable[..., Site]) -> None:
    """The tick must name the command. After the command has changed the table's types, the source must continue."""
    site = site_of()
    site.write(1)
    site.settle()
    other = site_of(bucket=site.component.bucket, schema="id string, amount double")
    other.cursor = site.cursor
    other.write(2, body=b'{"id": "two", "amount": 1}\n')
    with pytest.raises(Exception, match="`s3notify schema set orders 'id string'` changes the table's type"):
        other.evaluate()
    source = other.io.source
    SetTypes(location=source.location, commit=source.commit, columns="id string").run()
    other.settle()
    assert [row["id"] for row in other.io.load([2]).toArrow().to_pylist()] == ["two"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"schema": "id string, amount double"}),
        ({"transform": "tests.support.transforms.doubled"}, {"schema": "id string, amount double"}),
        ({"schema": None}, {"schema_hints": "id string"}),
    ],
)
def test_an_idle_tick_refuses_changed_types(
    site_of: Callable[..., Site],
    monkeypatch: pytest.MonkeyPatch,
    before: dict[str, Any],
    after: dict[str, Any],
) -> None:
    """Otherwise a wrong definition would seem right until an object changes, perhaps days after its deployment. After
    the first tick, an idle tick sends only its HEAD.
    """
    site = site_of(**before)
    site.write(1)
    site.settle()
    other = site_of(bucket=site.component.bucket, **(before | after))
    other.cursor = site.cursor
    for _ in range(2):
        with pytest.raises(
            Exception, match="`s3notify schema set orders 'id string'` changes the table's type"
        ):
            other.evaluate()
    same = site_of(bucket=site.component.bucket, **before)
    same.cursor = site.cursor
    counting = CountingStore(same.io.clients.store)
    monkeypatch.setattr(SourceClients, "store", property(lambda _: counting))
    assert same.tick() == []
    assert dict(counting.counts) == {"GET": 1, "LIST": 1, "HEAD": 1}
    counting.counts.clear()
    assert same.tick() == []
    assert dict(counting.counts) == {"HEAD": 1}
