"""Runs create a table, commit to the table, update `known`, and die anywhere. A table is reported as lost only if it is
lost.
"""

from contextlib import suppress

import pytest

from s3notify_platform.kernel.errors import (
    ConflictError,
    CorruptError,
    FencedError,
    UnavailableError,
    UnknownOutcomeError,
)
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.delta.actions import MetaData, Protocol
from s3notify_platform.table.open_table import TableName, claim, open_table
from tests.support.log_tables import IDENTITY, LAYOUT, SCHEMA, Counts, Table
from tests.support.simulation import ROUGH, run_simulation, simulated

NAME = TableName(source="orders", command=lambda name, *more: " ".join((name, *more)))
CREATE = (MetaData(id="", schema=SCHEMA, created_ms=1), Protocol())
IN_DOUBT = (UnavailableError, UnknownOutcomeError, ConflictError, FencedError)


def one_run(store, number, expected="", **given):
    """Opens the table as a sensor and a run do, and commits a version. Returns the table's id."""
    table = Table(store=store, **given)
    opened = open_table(table.whole, NAME, IDENTITY, expected=expected, create=CREATE)
    claim(table.reader, opened, f"sensor {number}")
    base = opened.snapshot
    assert base is not None
    table.committer.commit(Counts(base=base, slots=(number,), clock=table.clock), base)
    return opened.id


@simulated
def test_only_lost_tables_are_called_lost(seed):
    """Three runs race under all faults, beginning with the table's creation. Then versions are removed, and the loss
    must be noticed.
    """
    store, ids = MemoryObjectStore(), set()

    def actor(number):
        rounds = 0

        def run(store, clock):
            nonlocal rounds
            while rounds < 4:
                rounds += 1
                with suppress(*IN_DOUBT):
                    ids.add(one_run(store, number, expected=next(iter(ids), ""), clock=clock))

        return run

    run_simulation([actor(n) for n in range(3)], store, seed, faults=ROUGH)
    table = one_run(store, 9)
    assert ids <= {table}, "there was only one table"
    last = Table(store=store).opened()
    known, _ = Table(store=store).known.read()
    assert (known.table, known.version, known.number) == (table, last.version, last.number)
    assert known.identity == IDENTITY
    store.delete(LAYOUT.version(last.version))
    with pytest.raises(CorruptError, match="was committed"):
        one_run(store, 9)
    for meta in store.list(LAYOUT.prefix).objects:
        store.delete(meta.key)
    with pytest.raises(CorruptError, match="log is gone"):
        one_run(store, 9)
    assert not store.list(LAYOUT.prefix).objects, "nothing starts again"
