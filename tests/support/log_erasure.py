"""A table for tests of erasure. Key, ETag, rows and rejects of the object to erase contain texts that occur nowhere
else (`MARKS`).
"""

from s3notify_platform.kernel.slots import Slot
from s3notify_platform.table.commit import Committed
from tests.support.log_rounds import Rounds

RUN = 1000.0
KEY = "a-person4711"
MARKS = (KEY, "etag4711", 471147114712, 471147114711)
"""Texts that occur only in data of the erased object: in its key, its ETag, a row, and a reject."""
A = Slot(0)


def erasing(store, clock, vectors, monkeypatch):
    """Returns a function that makes a process over `store` or another store. Rounds write object states to files,
    too.
    """
    monkeypatch.setattr("s3notify_platform.table.states.state_levels.STATES_INLINE", 3)
    return lambda over=None: Rounds(
        store=over or store, clock=clock, vectors=vectors, more={"max_run_seconds": RUN}
    )


def commit(process, bucket, **note):
    planned = process.planned(bucket)
    planned.note = note
    done = process.commit(planned)
    assert isinstance(done, Committed)
    return done.snapshot


def filled(rounds, clock):
    """Commits the object among others, in several versions. In between, the object is overwritten. At the end, the
    object has left the bucket.
    """
    process = rounds()
    bucket = {f"a{n}": (f"e{n}", (1, 2, 3)) for n in range(4)}
    bucket |= {f"{letter}{n}": (f"e{n}", (1, 2, 3, n)) for letter in "bz" for n in range(3)}
    commit(process, bucket)
    with_it = {**bucket, KEY: ("etag4711", (471147114711, 471147114712))}
    commit(process, with_it, new=[KEY])
    with_it["b9"] = ("e9", (4, 5))
    commit(process, with_it)
    with_it[KEY] = ("etag4711-b", (471147114712, 471147114711, 8))
    commit(process, with_it)
    with_it["a2"] = ("new", (7,))
    commit(process, with_it)
    clock.sleep(60)
    return {key: found for key, found in with_it.items() if key != KEY}
