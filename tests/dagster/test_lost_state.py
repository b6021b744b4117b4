"""Lost tables and changed settings in Dagster: ticks, runs and checks refuse the table, and say what to do."""

from collections.abc import Callable

import dagster as dg
import pytest

from s3notify_platform.kernel.ports import list_all
from s3notify_platform.maintenance.migration import migrate
from tests.support.site import Site


def complete(site: Site) -> dg.AssetCheckEvaluation:
    return site.sweep()["complete"]


def test_an_emptied_table_is_refused(site: Site) -> None:
    """One changed object must not start a new table while the grid still shows all slots as materialized. After
    `forget`, everything is read again.
    """
    site.write(1, 2, 3)
    site.settle()
    for meta in list(list_all(site.store, "_s3notify/orders/")):
        site.store.delete(meta.key)
    site.write(2, body=site.line(20))
    with pytest.raises(Exception, match="s3notify table forget"):
        site.evaluate()
    failed = site.run([2])
    assert not failed.success
    assert "s3notify table forget" in site.failure(failed)
    checked = site.sweep()
    assert {name for name, check in checked.items() if check.passed} == {"chains_settled", "schema_changes"}
    for name in ("complete", "quarantine"):
        assert "s3notify table forget" in str(checked[name].description)
    assert not site.store.list("_s3notify/orders/table/").objects

    table = site.forget()
    site.settle()
    assert site.state.table == table
    assert site.rows() == {1: [1], 2: [20], 3: [3]}
    assert complete(site).passed


@pytest.mark.thorough
def test_changed_settings_are_refused_until_migration(site_of: Callable[..., Site]) -> None:
    """Run, sensor and sweep must refuse the table, and its rows must stay. After `migrate`, the next batches adapt the
    table.
    """
    site = site_of()
    site.write(1, 2, 3)
    site.settle()
    for settings in ({"prefix": "raw/1"}, {"slots": 8}):
        other = site_of(bucket=site.component.bucket, **settings)
        failed = other.run([1])
        assert not failed.success
        assert "s3notify table migrate" in other.failure(failed)
        assert "s3notify table migrate" in str(complete(other).description)
    assert site.rows() == {1: [1], 2: [2], 3: [3]}
    migrate(site.io.source.location, slots=8)
    other = site_of(bucket=site.component.bucket, slots=8)
    other.cursor = site.cursor
    other.settle()
    assert sorted(id_ for ids in other.rows().values() for id_ in ids) == [1, 2, 3]
    assert complete(other).passed
