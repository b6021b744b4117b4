"""Objects change between the rounds of a run. The next round reads the data that did not fit into the round before.

See `test_changes` for changes during a read.
"""

from collections.abc import Callable
from functools import partial

import pytest

from tests.support.changing import COUNT, PART, Changing, lines, packed
from tests.support.independent import differences

pytestmark = [pytest.mark.spark, pytest.mark.server]

BIG = lines(COUNT, "second")


@pytest.mark.thorough
def test_rows_of_an_object_that_changes_between_two_rounds_are_withdrawn(
    changing_of: Callable[..., Changing],
) -> None:
    """A run must continue objects that were committed in part. If an object changed between two rounds, the run must
    withdraw the object's rows.
    """
    bucket = changing_of(split_bytes=PART, max_bytes=5 * PART)
    key = "raw/{}".format
    big = {key("steady.jsonl"): BIG, key("steady.jsonl.gz"): packed(COUNT, "steady")}
    changes: dict[str, Callable[[], object]] = {}
    for suffix, body in (("jsonl", lines), ("jsonl.gz", packed)):
        names = {name: key(f"{name}.{suffix}") for name in ("overwritten", "emptied", "deleted", "renamed")}
        for name in names.values():
            big[name] = body(COUNT, name)
        changes |= {
            names["overwritten"]: partial(bucket.put, names["overwritten"], body(150, "new")),
            names["emptied"]: partial(bucket.put, names["emptied"], b""),
            names["deleted"]: partial(bucket.delete, names["deleted"]),
            names["renamed"]: partial(bucket.rename, names["renamed"], key(f"x.{suffix}")),
        }
    for name, content in big.items():
        bucket.put(name, content)

    def before_round() -> None:
        for name in bucket.pending() & changes.keys():
            changes.pop(name)()

    assert bucket.run(before_round=before_round).complete
    assert not changes, "each object was committed in part when it changed"
    assert bucket.rows_begun(key("steady.jsonl")) == 1, "committed data is not read again"
    # A run that reads entries lists nothing, so the next run ingests the changes that came between two rounds.
    bucket.run()
    bucket.settled()


@pytest.mark.thorough
def test_rows_of_earlier_rounds_stay_until_the_change_is_ingested(
    changing_of: Callable[..., Changing],
) -> None:
    """An object changes before a later round. The rows of earlier rounds must stay until the change is ingested."""
    bucket = changing_of(split_bytes=PART, max_bytes=3 * PART)
    names = {name: f"raw/{name}.jsonl" for name in ("overwritten", "deleted")}
    changes: dict[str, Callable[[], object]] = {
        names["overwritten"]: lambda: bucket.put(names["overwritten"], lines(150, "new")),
        names["deleted"]: lambda: bucket.delete(names["deleted"]),
    }
    for name in names.values():
        bucket.put(name, lines(COUNT, name))

    def before_round() -> None:
        for name in bucket.pending() & changes.keys():
            bucket.when_asked(changes.pop(name), key=name, number=2)

    bucket.run(before_round=before_round)
    assert not changes
    bucket.run()
    bucket.settled()


@pytest.mark.thorough
def test_run_with_too_little_time_leaves_the_rest_to_the_next_run(
    changing_of: Callable[..., Changing],
) -> None:
    """The next run must continue where the first run ended, although no object has changed. A changed object must be
    read from its beginning.
    """
    bucket = changing_of(split_bytes=PART, max_bytes=4 * PART, max_seconds=0.0)
    bucket.put("raw/a.jsonl", BIG)
    assert not bucket.run().complete
    assert bucket.pending() == {"raw/a.jsonl"}
    runs = 1
    while not bucket.run().complete:
        runs += 1
    assert runs >= 2
    assert bucket.rows_begun("raw/a.jsonl") == 1
    assert not differences(bucket.place)
    bucket.put("raw/a.jsonl", lines(COUNT, "two"))
    assert not bucket.run().complete
    bucket.put("raw/a.jsonl", lines(30, "three"))
    assert bucket.run().complete
    bucket.settled()
