"""Steps for tests of rollback to an earlier version of a table."""

from s3notify_platform.maintenance.table_rollback import HOLDER, Rollback
from s3notify_platform.maintenance.vacuuming import vacuum
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.versions import snapshot_of

A, B = 0, 1
RUN, RETENTION = 100.0, 1000.0


def committed(rounds, bucket, slots=None):
    process = rounds()
    done = process.commit(process.planned(bucket, slots))
    assert isinstance(done, Committed)
    return done.snapshot


def filled(rounds, count=6):
    """Commits objects of two slots, with rejects. After that, changes one of the two slots."""
    first = {f"{letter}{n}": (f"e{n}", (1, 2, 3, 4 + n)) for letter in "ab" for n in range(count)}
    at_first = committed(rounds, first)
    second = {**first, "a1": ("new", (7, 8, 9)), "a9": ("new", (3, 3, 1))}
    del second["a0"]
    at_second = committed(rounds, second)
    return first, at_first, second, at_second


def planned(process, version):
    base = process.table.opened()
    return Rollback(
        target=snapshot_of(process.table.reader, version),
        readable=base,
        refused=False,
        committer=process.table.committer,
    )


def begun(process, change):
    return process.table.committer.commit_alone(change, change.readable, holder=HOLDER)


def held(rounds):
    return rounds().table.known.read()[0].held


def aged(rounds, clock, bucket, count):
    """Lets half of the retention time pass, then commits `count` table versions."""
    clock.sleep(RETENTION / 2)
    for n in range(count):
        bucket["b1"] = (f"later{n}", (n, n + 1))
        committed(rounds, bucket)


def cleaned(rounds, clock):
    table = rounds().table
    return vacuum(table.committer, table.opened(), retention_seconds=RETENTION, clock=clock)
