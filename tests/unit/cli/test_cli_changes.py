"""`s3notify changes` on a real server."""

import json
from typing import Any

import pytest

from s3notify_platform.table.state_changes import key_hash
from tests.support.ingested import Place
from tests.support.short_history import cut
from tests.unit.cli.conftest import SLOT, Run
from tests.unit.cli.test_cli_table import values

pytestmark = pytest.mark.server


def changed(run: Run, since: int) -> list[tuple[Any, ...]]:
    """Type, version and reason of each change that the command prints, and key and value of its row."""
    answer = run("changes", "orders", "--since", str(since))
    assert answer.exit_code == 0, answer.output
    found = [json.loads(line) for line in answer.stdout.splitlines()]
    names = ("_change_type", "_commit_version", "_reason", "_key", "a")
    return [tuple(row.get(name) for name in names) for row in found]


def test_changes_of_an_overwritten_object(run: Run) -> None:
    """The command must show the old rows as deleted, and the new rows as inserted."""
    assert changed(run, 1) == [
        ("delete", 2, "overwritten", "raw/a", 1),
        ("insert", 2, "overwritten", "raw/a", 10),
        ("insert", 2, "overwritten", "raw/a", 11),
    ]
    assert values(run("changes", "orders", "--since", "0", "--until", "1")) == [1, 2]
    assert values(run("changes", "orders", "--since", "0", "--until", "1", "--slot", str(SLOT))) == [1]
    assert values(run("changes", "orders", "--since", "0", "--limit", "1", "--json")) != []
    assert values(run("changes", "orders", "--since", "2")) == []
    assert run("changes", "orders").exit_code == 2
    gone = run("changes", "orders", "--since", "1", "--until", "99")
    assert (gone.exit_code, "versions 0 to 2 are kept" in gone.output) == (1, True)
    late = run("changes", "orders", "--since", "99")
    assert (late.exit_code, "since version 99: give at most 2" in late.output) == (1, True)


def test_changes_before_the_kept_versions_are_refused(place: Place, run: Run) -> None:
    """Otherwise a reader that pauses for longer than the retention would miss changes without an error."""
    cut(place.source.table())
    gone = run("changes", "orders", "--since", "1")
    assert gone.exit_code == 1
    assert "are kept; begin with a snapshot" in gone.output


def test_changes_of_backfilled_and_erased_objects(place: Place, run: Run) -> None:
    """If the changes lacked the deletions of a backfill, a consumer would have each row twice. If the changes showed
    the key of an erased object instead of the key's hash, readers would still see the key after `erase`.
    """
    assert run("backfill", "orders", "--all").exit_code == 0
    place.run("third")
    rows = [("raw/a", 10), ("raw/a", 11), ("raw/b", 2)]
    assert sorted(changed(run, 2)) == [
        (change, 4, "backfilled", *row) for change in ("delete", "insert") for row in rows
    ]
    place.store.delete("raw/b")
    erased = run("erase", "raw/b", "--name", "orders", "--prefix", "raw/", "--yes")
    assert "the table's history now begins with version 5" in erased.output
    assert changed(run, 4) == [("delete", 5, "erased", key_hash("raw/b"), None)]
