"""Versions of other engines that readers and writers refuse, and the rollback that undoes these versions."""

import io
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.maintenance.table_rollback import roll_back
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.delta.actions import LogVersion, Protocol
from s3notify_platform.table.delta.checkpoint import Checkpoint, encode
from s3notify_platform.table.delta.log_state import UNDOES, LogState, after
from tests.support.log_back import aged, committed, filled
from tests.support.log_rounds import Rounds
from tests.support.log_tables import LAYOUT, Table, beaten, versions


def foreign(store, version, **given):
    body = LogVersion(**given).dumps().splitlines(keepends=True)
    store.put(LAYOUT.version(version), b"".join(line for line in body if b'"txn"' not in line))


def updated(process, base):
    """The actions of a version that another engine's UPDATE makes: a pack is replaced by a pack with the same number of
    rows.
    """
    held = next(iter(base.packs.values()))
    path = LAYOUT.pack_path("theirs")
    body = process.store.get(LAYOUT.file(held.path)).body
    process.store.put(LAYOUT.file(path), body)
    one = replace(held, path=path, vector=None, since=0, until=2**63 - 1)
    return {"adds": (one,), "removes": (held.removed(1),), "operation": "UPDATE"}


def emptied(_, base):
    return {"removes": tuple(each.removed(1) for each in base.packs.values()), "operation": "DELETE"}


def raised(_, base):
    return {
        "protocol": Protocol(reader=3, writer=7, reader_features=("x",), writer_features=("x",)),
        "metadata": replace(base.metadata, id="theirs", schema='{"type":"struct","fields":[]}'),
    }


def seen_by_engines(store):
    """The state of the table for an engine that does not know the platform's rules."""
    state = LogState()
    for version in versions(store):
        state = after(state, version, where="", undone=True)
    return state


@pytest.mark.parametrize("what", [updated, emptied, raised])
@pytest.mark.parametrize("back", [0, 1])
def test_rollback_undoes_a_refused_version(rounds, store, what, back):
    """If the refused version stayed, runs would refuse the table for ever. After the rollback, readers with a
    cache, readers without a cache, and other engines must see the same rows. The rollback goes to the last
    accepted version, or to an earlier version.
    """
    first, at_first, second, at_second = filled(rounds)
    warm = rounds()
    kept = warm.table.opened()
    foreign(store, at_second.version + 1, **what(warm, at_second))
    for read in (rounds().table.reader.open, lambda: warm.table.reader.refresh(kept)):
        with pytest.raises(UsageError, match=f"rollback NAME --to {at_second.version}"):
            read()
    target, bucket = (at_first, first) if back else (at_second, second)
    done = roll_back(rounds().whole, target.version)
    assert isinstance(done, Committed)
    assert done.snapshot.version == at_second.version + 2
    assert versions(store)[-1].note[UNDOES] == [at_second.version + 1]
    for found in (rounds().table.opened(), warm.table.reader.refresh(kept)):
        assert warm.contents(found) == bucket
        assert found.metadata == at_second.metadata
    engine = seen_by_engines(store)
    assert {pack.id for pack in engine.packs.values()} == {pack.id for pack in target.packs.values()}
    assert (engine.metadata, engine.protocol) == (at_second.metadata, at_second.protocol)
    # The table accepts new commits, and every version of the platform can still be read.
    assert committed(rounds, {**bucket, "c1": ("c", (1, 3))}).version == at_second.version + 3
    for version, contents in ((at_first.version, first), (at_second.version, second)):
        assert rounds().contents(rounds().table.reader.as_of(version)) == contents


def test_rollback_undoes_several_refused_versions(rounds, store):
    """If one refused version stayed, readers would still refuse the table. If the adopted version before the first
    refused version were undone, an accepted change of another engine would be lost. Adopted versions after the first
    refused version are undone, too.
    """
    _, _, second, at_second = filled(rounds)
    process, number = rounds(), at_second.version
    foreign(store, number + 1, metadata=replace(at_second.metadata, description="theirs"))
    foreign(store, number + 2, **updated(process, at_second))
    foreign(store, number + 3, metadata=replace(at_second.metadata, description="more"))
    foreign(store, number + 4, **emptied(process, at_second))
    done = roll_back(rounds().whole, number + 1)
    assert versions(store)[-1].note[UNDOES] == [number + 2, number + 3, number + 4]
    assert done.snapshot.metadata.description == "theirs"
    assert rounds().contents() == second


def test_rollback_undoes_a_refused_version_right_after_a_checkpoint(rounds, store, clock):
    _, _, second, _ = filled(rounds, count=2)
    aged(rounds, clock, second, 18)
    snapshot = rounds().table.opened()
    assert snapshot.version == snapshot.checkpoint == 20
    for version in range(20):
        store.delete(LAYOUT.version(version))
    foreign(store, 21, **emptied(None, snapshot))
    assert isinstance(roll_back(rounds().whole, 20), Committed)
    assert rounds().contents() == second


def checkpointed(store, version, base, packs):
    """Writes a checkpoint as another engine does, at a table version that the other engine committed."""
    state = Checkpoint(
        protocol=base.protocol, metadata=base.metadata, txns={base.table: base.number}, adds=packs
    )
    body, name = encode(state, version=version)
    theirs = pq.read_table(io.BytesIO(body)).replace_schema_metadata(None)
    sink = io.BytesIO()
    pq.write_table(theirs, sink)
    store.put(LAYOUT.checkpoint(version), sink.getvalue())
    store.put(LAYOUT.last_checkpoint, name.dumps())


def test_checkpoint_of_another_engine_does_not_hide_a_refused_version(rounds, store):
    _, _, second, at_second = filled(rounds)
    foreign(store, at_second.version + 1, **emptied(None, at_second))
    checkpointed(store, at_second.version + 1, at_second, ())
    with pytest.raises(UsageError, match="changes rows"):
        rounds().table.reader.open()
    assert isinstance(roll_back(rounds().whole, at_second.version), Committed)
    assert rounds().contents() == second


def test_adopted_version_with_a_checkpoint_is_read(rounds, store):
    """Otherwise nobody could read or change the table after the log is cut below another engine's checkpoint."""
    _, _, second, at_second = filled(rounds)
    theirs = replace(at_second.metadata, description="theirs")
    foreign(store, at_second.version + 1, metadata=theirs)
    base = replace(at_second, metadata=theirs)
    checkpointed(store, at_second.version + 1, base, tuple(at_second.packs.values()))
    assert rounds().table.opened().metadata == theirs
    for version in range(at_second.version + 1):
        store.delete(LAYOUT.version(version))
    assert rounds().table.opened().metadata == theirs
    assert committed(rounds, {**second, "b1": ("x", (1,))}).version == at_second.version + 2


def test_rollback_under_leases_undoes_any_version_of_another_engine(store, clock):
    process = Rounds(store=store, clock=clock)
    bucket = {"a1": ("a", (1, 2, 3))}
    process.commit(process.planned(bucket))
    leased = Table(store=store, clock=clock, adopt=False)
    base = leased.opened()
    foreign(store, base.version + 1, metadata=replace(base.metadata, description="theirs"))
    with pytest.raises(UsageError, match="under leases"):
        leased.reader.open()
    assert isinstance(roll_back(leased.whole, base.version), Committed)
    assert leased.opened().metadata == base.metadata
    assert process.contents() == bucket


def test_version_that_changes_rows_after_a_rollback_is_refused(rounds, store):
    """Otherwise, after any rollback, other engines could change rows unnoticed, and the object states would
    no longer agree with the rows.
    """
    _, _, _, at_second = filled(rounds)
    foreign(store, at_second.version + 1, **emptied(None, at_second))
    roll_back(rounds().whole, at_second.version)
    foreign(store, at_second.version + 3, **emptied(None, at_second))
    with pytest.raises(UsageError, match="changes rows"):
        rounds().table.opened()


def test_table_stays_refused_after_a_platform_version_that_undoes_nothing(rounds, store):
    _, _, _, at_second = filled(rounds)
    foreign(store, at_second.version + 1, **emptied(None, at_second))
    later = LogVersion(number=7, parent=at_second.number, table=at_second.table)
    store.put(LAYOUT.version(at_second.version + 2), later.dumps())
    with pytest.raises(UsageError, match="changes rows"):
        rounds().table.opened()


def test_rollback_succeeds_while_another_engine_keeps_committing(rounds, store, clock):
    first, at_first, _, at_second = filled(rounds)
    foreign(store, at_second.version + 1, **emptied(None, at_second))

    def other():
        foreign(store, at_second.version + 2, protocol=Protocol(reader=3, writer=7))

    roll_back(beaten(rounds().whole, [other]), at_first.version)
    assert versions(store)[-1].note[UNDOES] == [at_second.version + 1, at_second.version + 2]
    assert rounds().contents() == first


def test_round_commits_after_a_refused_version_is_undone(rounds, store):
    _, _, second, at_second = filled(rounds)
    process = rounds()
    change = process.planned({**second, "b1": ("mine", (1, 2))})
    foreign(store, at_second.version + 1, **emptied(None, at_second))
    with pytest.raises(UsageError, match="changes rows"):
        process.commit(change)
    roll_back(rounds().whole, at_second.version)
    assert isinstance(process.commit(change), Committed)
    assert rounds().contents() == {**second, "b1": ("mine", (1, 2))}
