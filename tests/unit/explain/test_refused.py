"""`explain` for keys whose objects the store refuses: the answer has all facts from other places."""

import pytest

from s3notify_platform.kernel.errors import RefusedError
from s3notify_platform.kernel.slots import slot_of
from tests.support.explained import KEY, SLOT, ReadOnly, said

WHY = "bucket 'b' refuses it: 403 AccessDenied"


class RefusesOne(ReadOnly):
    """A bucket that returns all objects but one."""

    def head(self, key):
        if key == KEY:
            raise RefusedError(WHY)
        return super().head(key)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("raw/../a.jsonl", "one of its segments is . or .."),
        ("raw/a\0", "it holds NUL"),
        ("raw/" + "x" * 1100, "it has 1104 bytes, and 1 to 1024 are allowed"),
    ],
    ids=["dots", "nul", "long"],
)
def test_an_unaddressable_key_is_explained(place, key, why):
    """The store must be asked only for the slot's signal, not for the key."""
    answer = place.ask(key)
    assert place.reads.counts["HEAD"] == 1
    text = f"not known: S3 clients cannot address this key: {why}; it has no rows"
    assert said(answer) == ("refused", text)
    assert not answer.verdict.settled
    assert f"object: not known, S3 clients cannot address this key: {why}" in answer.lines
    assert answer.document()["verdict"] == "refused"
    assert answer.slot == slot_of(key, 16)


def test_an_object_refused_by_the_store_is_explained(place):
    """The user must see why the store refuses the object, and the object's committed, queued or quarantined state."""
    place.put()
    place.reads = RefusesOne(place.store)
    text = f"not known: {WHY}; it has no rows, and an entry in the queue names it"
    assert said(place.ask()) == ("refused", text)
    place.commit(place.state())
    answer = place.ask()
    assert said(answer) == ("refused", f"not known: {WHY}; 3 records of it are in version 1")
    assert any("(perhaps the current version)" in line for line in answer.lines)
    place.commit(place.state(rows=0, offset=0, reach_end=False, reason="403 AccessDenied"))
    assert said(place.ask()) == ("quarantined", "quarantined because it could not be read: 403 AccessDenied")
    assert place.ask().slot == SLOT
