"""The main job on a bucket of Ceph RGW, from published objects to committed rows. Dagster and Spark run in this
process.
"""

import pytest

from tests.support.site import Site

pytestmark = [pytest.mark.ceph, pytest.mark.spark]


def test_created_overwritten_and_deleted_objects_reach_the_table(site: Site) -> None:
    """Otherwise the table would differ from the bucket, since this store ignores conditions on DELETE and COPY."""
    site.write(1, 2, 3)
    site.write(1, number=1)
    site.settle()
    assert site.rows() == {1: [1, 1], 2: [2], 3: [3]}

    site.write(2, body=site.line(20) + b"not json\n" + site.line(21))
    site.delete(3)
    site.write(7)
    (request,) = site.tick()
    assert site.slots_of(request) == [2, 3, 7]
    assert site.launch(request).success
    site.settle()
    assert site.rows() == {1: [1, 1], 2: [20, 21], 7: [7]}
    assert site.metadata(2)["records_rejected"] == 1
    assert site.metadata(3)["objects_removed"] == 1
    assert site.grid()["failed"] == set()


def test_two_runs_on_the_same_slots_commit_each_row_once(site: Site) -> None:
    """Otherwise a row would be in the table twice. The second run must find no work."""
    site.settle()
    site.write(3, 5)
    (request,) = site.tick()
    assert site.run([3, 5]).success
    assert site.launch(request).success
    assert site.rows() == {3: [3], 5: [5]}
    site.settle()


def test_the_sweep_finds_unannounced_changes(site: Site) -> None:
    """Otherwise an object that was written without a signal would never get into the table."""
    site.write(1)
    site.settle()
    site.write_silently(9)
    assert not site.sweep()["complete"].passed
    site.settle()
    assert site.rows() == {1: [1], 9: [9]}
    assert all(check.passed for check in site.sweep().values())
