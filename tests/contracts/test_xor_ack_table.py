"""Ack chains in the npm package's table: alone, and with a peer that follows the package's protocol."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.kernel.errors import CorruptError, StaleLocalData, TagExists, TagNotFound, UsageError
from s3notify_platform.kernel.ports import Conflict, Written
from s3notify_platform.protocols.ack_chain import (
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    Stamped,
    new_stamp,
    xor,
)
from s3notify_platform.protocols.ack_chain.shared import SharedChains, child_stamp
from s3notify_platform.stores.dynamodb.xor_ack_table import SUFFIX, XorAckTable
from tests.support.clocks import HandClock, HurriedClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.xor_ack_peer import PeerError, make_table, running

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def config(ministack):
    return make_table(ministack.endpoint_url)


@pytest.fixture
def table(config):
    """The emptied table."""
    table = XorAckTable(config)
    yield table
    for key in table._table.keys("tagID"):
        table._table.client.delete_item(TableName=config.table, Key={"tagID": {"S": key}})
    table.close()


@pytest.fixture
def chains(table):
    return SharedChains(table)


@pytest.fixture(scope="module")
def peer(config, peer_folder):
    with running(peer_folder, config) as peer:
        yield peer


def item(table, key):
    return table._table.get({"tagID": {"S": key}})


# The platform alone


def test_chain_is_stored_in_the_packages_item(chains, table):
    """The package replaces its whole item with every stamp, so this item has only the XOR. Names, payload, deadline or
    operation ids in this item would be lost at the package's next stamp.
    """
    opened = chains.open_batch("t", ["1", "2"], payload="p", deadline_seconds=9)
    assert opened == chains.state("t")
    assert item(table, "t").keys() == {"tagID", "stamp"}
    with pytest.raises(TagExists):
        chains.open_batch("t", ["1"])
    assert chains.stamp_children("t", ["1"], "op 1", starts=["1/a"]) == Stamped(missing=2)
    assert chains.stamp_children("t", ["1"], "op 1") == Stamped(missing=2)
    assert chains.state("t").missing == ("2", "1/a")
    assert chains.stamp_children("t", ["2", "1/a"], "op 2") == Acked()
    assert chains.stamp_children("t", ["2"], "op 2") == Acked()
    assert chains.stamp_children("t", ["2"], "op 3") == AlreadyAcked()
    assert (chains.state("t").status, chains.state("t").payload) == ("acked", "p")
    assert item(table, "t") is None
    assert abs(int(item(table, "t" + SUFFIX)["ttl"]["N"]) * 1000 - SYSTEM_CLOCK.wall_ms()) < 8 * 86_400_000
    chains.delete("t")
    assert (item(table, "t"), item(table, "t" + SUFFIX)) == (None, None)
    with pytest.raises(TagNotFound):
        chains.state("t")


def test_failed_chain_keeps_its_reason(chains, table):
    """When a chain fails, the package's item is deleted. Without the reason in the platform's item, a late stamper
    could not say why the chain failed.
    """
    chains.open_batch("t", ["1", "2"])
    assert chains.fail("t", "died").missing == ("1", "2")
    assert chains.stamp_children("t", ["1"]) == AlreadyFailed(reason="died")
    assert item(table, "t") is None


@pytest.mark.parametrize("how", ["by us", "by the package", "failed"])
def test_tag_of_an_ended_chain_may_be_used_again(chains, table, config, how):
    """If `reuse` had no effect, a job that always uses one tag would get `TagExists` until its last chain is purged.
    Without the new XOR in the package's item, the package could not stamp the new chain.
    """
    one, other = new_stamp(), new_stamp()
    chains.create("t", one)
    if how == "by us":
        assert chains.stamp("t", one).xor == bytes(16)
    elif how == "failed":
        chains.fail("t", "died")
    else:  # the package deletes its item
        table._table.client.delete_item(TableName=config.table, Key={"tagID": {"S": "t"}})
    with pytest.raises(TagExists):
        chains.create("t", one)
    chains.create("t", xor(one, other), payload="again", reuse=True)
    with pytest.raises(TagExists):
        chains.create("t", one, reuse=True)
    assert (chains.state("t").status, chains.state("t").payload) == ("open", "again")
    assert bytes(item(table, "t")["stamp"]["B"]) == xor(one, other)
    assert chains.stamp("t", one).xor == other == bytes(item(table, "t")["stamp"]["B"])
    assert chains.stamp("t", other) == Acked()


def test_chains_are_listed_and_purged(table):
    """If the listing had the platform's own items, each open chain would appear twice. Without the purge, the
    tombstones of ended chains would fill a table that has no TTL.
    """
    clock = HandClock()
    chains = SharedChains(table, clock=clock, tombstone_seconds=10)
    for n in range(30):
        chains.open_batch(f"t{n:02}", ["1"])
    chains.stamp_children("t07", ["1"])
    assert [state.tag for state in chains.states()] == [f"t{n:02}" for n in range(30)]
    clock.now += 11
    assert chains.purge() == 1
    assert len(list(chains.states())) == 29


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.LATE])
@pytest.mark.parametrize("method", ["create", "replace", "remove"])
def test_write_in_doubt_is_applied_once(table, fault, method):
    """If a stamp whose answer is lost were applied twice, the second XOR would revert the first. The chain would then
    stay open, although all its work is done.
    """
    faulty = FaultyStore(table, at(method, fault))
    chains = SharedChains(faulty, clock=HurriedClock())
    one, other = new_stamp(), new_stamp()
    chains.create("t", xor(one, other))
    assert chains.stamp("t", one) == Stamped(missing=None)
    faulty.settle()
    assert chains.stamp("t", other) == Acked()
    chains.delete("t")
    faulty.settle()
    with pytest.raises(TagNotFound):
        chains.state("t")


@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER])
def test_stamp_repeated_after_a_crash_counts_once(table, fault):
    """Without the operation id, a restarted worker would revert its own stamp, and the chain would stay open. If the
    stamp was the chain's last stamp, the worker would get `AlreadyAcked`, and no worker would get `Acked`.
    """
    one, other = new_stamp(), new_stamp()
    SharedChains(table).create("t", xor(one, other))
    for stamp, outcome in ((one, Stamped(missing=None)), (other, Acked())):
        with pytest.raises(CrashedError):
            SharedChains(FaultyStore(table, at("replace", fault))).stamp("t", stamp, operation_id=stamp.hex())
        assert SharedChains(table).stamp("t", stamp, operation_id=stamp.hex()) == outcome


def test_concurrent_stamps_lose_nothing(chains, table):
    """Otherwise one worker could overwrite the stamp of another worker, and the chain would stay open. If two workers
    got `Acked`, the work that follows the chain would begin twice.
    """
    chains.open_batch("t", map(str, range(24)))
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda n: SharedChains(table).stamp_children("t", [str(n)]), range(24)))
    assert outcomes.count(Acked()) == 1
    assert chains.state("t").status == "acked"


def test_version_covers_both_items(chains, table):
    """Otherwise a client with an old record could undo a stamp, or open a failed chain again."""
    chains.open_batch("t", ["1", "2"])
    before = table.read("ack", "t")
    chains.stamp_children("t", ["1"])
    assert table.replace("ack", "t", before.value, expected=before.version) == Conflict()
    assert table.remove("ack", "t", expected=before.version) == Conflict()
    assert table.create("ack", "t", before.value) == Conflict()
    # The package's item gets its old stamp back; the platform's item stays as it is.
    old_stamp = item(table, "t")
    now = table.read("ack", "t")
    chains.fail("t", "x")
    table._table.client.put_item(TableName=table._table.config.table, Item=old_stamp)
    assert table.replace("ack", "t", now.value, expected=now.version) == Conflict()
    assert isinstance(table.remove("ack", "t", expected=table.read("ack", "t").version), Written)


def test_unsupported_records_are_refused(chains, table, config):
    """If a tag could contain NUL, two chains could share an item. The table stores tags without their partition, so
    chains with one tag in two partitions would be the same chain.
    """
    with pytest.raises(UsageError, match="NUL"):
        chains.open_batch("a" + SUFFIX, ["1"])
    with pytest.raises(UsageError, match="partition 'ack', not the chains of 'other'"):
        SharedChains(table, partition="other").open_batch("t", ["1"])
    with pytest.raises(UsageError, match="counters"):
        table.add("ack", "n", 1)
    assert table.read("other", "t") is None
    assert list(table.scan("other")) == []
    table._table.client.put_item(TableName=config.table, Item={"tagID": {"S": "x"}, "n": {"N": "1"}})
    with pytest.raises(CorruptError, match="are not an ack chain"):
        chains.state("x")


# With a peer that follows the package's protocol


@pytest.mark.npm
def test_platform_finishes_a_chain_of_the_package(chains, peer):
    """The package has no operation ids, so the platform's first stamp must store them in an item of the platform.
    Otherwise a repeated stamp of the platform would revert the first stamp, and the chain would stay open.
    """
    stamps = [new_stamp() for _ in range(3)]
    peer.create("t", xor(*stamps))
    with pytest.raises(TagExists):
        chains.create("t", stamps[0])
    assert (chains.state("t").status, chains.state("t").children) == ("open", ())
    assert chains.stamp("t", stamps[0], operation_id="a") == Stamped(missing=None)
    assert not peer.stamp("t", stamps[1])
    assert chains.stamp("t", stamps[0], operation_id="a") == Stamped(missing=None)
    assert chains.stamp("t", stamps[2], operation_id="c") == Acked()
    assert chains.stamp("t", stamps[2], operation_id="c") == Acked()
    with pytest.raises(PeerError, match="TypeError"):
        peer.stamp("t", stamps[2])


@pytest.mark.npm
def test_package_finishes_a_chain_of_the_platform(chains, table, peer):
    """The package overwrites its whole item with each stamp, and deletes the item at the chain's end. Without its own
    item, the platform would lose the payload and the names of the children, and an acked chain would look unknown.
    """
    chains.open_batch("t", ["1", "2", "3"], payload="p")
    seed = bytes.fromhex(json.loads(table.read("ack", "t").value)["seed"])
    with pytest.raises(PeerError) as error:
        peer.create("t", new_stamp())
    assert (error.value.name, error.value.code) == ("TagExists", "Conflict")
    assert not peer.stamp("t", child_stamp(seed, "1"))
    assert chains.stamp_children("t", ["2"], "two") == Stamped(missing=2)
    assert chains.state("t").payload == "p"
    assert peer.stamp("t", child_stamp(seed, "3"))
    state = chains.state("t")
    assert (state.status, state.children, state.missing) == ("acked", ("1", "2", "3"), ())
    assert [found.status for found in chains.states()] == ["acked"]
    assert chains.stamp_children("t", ["3"]) == AlreadyAcked()
    assert chains.fail("t", "late").status == "acked"
    with pytest.raises(TagExists):
        chains.open_batch("t", ["1"])
    chains.delete("t")
    assert item(table, "t" + SUFFIX) is None


@pytest.mark.npm
@pytest.mark.parametrize("begun_by", ["us", "peer"])
def test_concurrent_stamps_of_both_lose_nothing(chains, table, peer, begun_by):
    """Otherwise the package could overwrite a stamp of the platform, or the platform a stamp of the package, and the
    chain would stay open. If two clients got `Acked`, the work that follows the chain would begin twice.
    """
    for tag in ("a", "b", "c"):
        stamps = [new_stamp() for _ in range(24)]
        (chains if begun_by == "us" else peer).create(tag, xor(*stamps))

        def ours(stamp, tag=tag):
            client = SharedChains(table)
            while True:
                try:
                    return client.stamp(tag, stamp, operation_id=stamp.hex())
                except StaleLocalData:
                    pass

        with ThreadPoolExecutor(9) as pool:
            theirs = pool.submit(peer.stamp_all, tag, stamps[:12])
            outcomes = list(pool.map(ours, stamps[12:]))
            acked = theirs.result()["acked"]
        assert acked + outcomes.count(Acked()) == 1
        assert item(table, tag) is None
        assert chains.state(tag).status == "acked" if item(table, tag + SUFFIX) else begun_by == "peer"


@pytest.mark.npm
def test_chain_may_be_deleted_by_either_side(chains, table, peer):
    """The package also deletes its item when it finishes a chain. If a missing item did not count as the chain's end,
    the platform would wait for the chain for ever. If the platform's delete left the package's item, the package would
    still find the deleted chain.
    """
    chains.create("t", new_stamp())
    peer.delete("t")
    assert chains.state("t").status == "acked"
    peer.create("u", new_stamp())
    chains.delete("u")
    with pytest.raises(PeerError, match="TagNotFound"):
        peer.delete("u")
    with pytest.raises(TagNotFound):
        chains.state("u")


@pytest.mark.npm
def test_chain_begun_again_by_the_package_is_new(chains, peer):
    """The platform had finished a chain with this tag. The new chain must have no data of the old chain."""
    chains.open_batch("t", ["1"], payload="old")
    chains.stamp_children("t", ["1"])
    stamp = new_stamp()
    peer.create("t", stamp)
    assert (chains.state("t").status, chains.state("t").payload) == ("open", "")
    assert chains.stamp("t", stamp) == Acked()


@pytest.mark.npm
def test_peer_refuses_what_the_package_refuses(peer):
    """The package refuses zero stamps and wrong lengths.

    A peer that accepted these stamps could not replace the package in tests.
    """
    with pytest.raises(PeerError, match="ZeroBufferNoOp"):
        peer.create("t", bytes(16))
    peer.create("t", new_stamp())
    with pytest.raises(PeerError) as error:
        peer.stamp("t", b"short but long")
    assert (error.value.name, error.value.code) == ("BufferLengthsUnequal", "Bad Request")
    peer.delete("t")
