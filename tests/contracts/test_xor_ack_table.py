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
    """The package's item has only the XOR.

    Names, payload, deadline, operation ids and tombstone are in another item.
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
    """For the package, a failed chain does not exist."""
    chains.open_batch("t", ["1", "2"])
    assert chains.fail("t", "died").missing == ("1", "2")
    assert chains.stamp_children("t", ["1"]) == AlreadyFailed(reason="died")
    assert item(table, "t") is None


@pytest.mark.parametrize("how", ["by us", "by the package", "failed"])
def test_tag_of_an_ended_chain_may_be_used_again(chains, table, config, how):
    """The tag can be used again immediately if the caller sets `reuse`.

    The package's item exists again, and has the XOR that `stamp` returns.
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
    """Chains are listed by tag. The listing does not have the platform's own items."""
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
    """The chain behaves as it does on other stores."""
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
    """The operation id identifies the stamp, even if it was the chain's last stamp."""
    one, other = new_stamp(), new_stamp()
    SharedChains(table).create("t", xor(one, other))
    for stamp, outcome in ((one, Stamped(missing=None)), (other, Acked())):
        with pytest.raises(CrashedError):
            SharedChains(FaultyStore(table, at("replace", fault))).stamp("t", stamp, operation_id=stamp.hex())
        assert SharedChains(table).stamp("t", stamp, operation_id=stamp.hex()) == outcome


def test_concurrent_stamps_lose_nothing(chains, table):
    """Many processes stamp, and exactly one gets `Acked`."""
    chains.open_batch("t", map(str, range(24)))
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda n: SharedChains(table).stamp_children("t", [str(n)]), range(24)))
    assert outcomes.count(Acked()) == 1
    assert chains.state("t").status == "acked"


def test_version_covers_both_items(chains, table):
    """If one of the two items has changed, the write is a conflict."""
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
    """The table cannot hold counters, other partitions, NUL in a tag, or items that are not a chain."""
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
    """The platform may stamp the package's chain. Operation ids work from the platform's first stamp on."""
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
    """The package overwrites its whole item, but the platform's data of the chain is kept."""
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
    """The package and the platform stamp one chain at the same time.

    Every stamp counts once, and exactly one gets `Acked`.
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
    """If the package deletes its item, the chain counts as finished, because the package also deletes the item of each
    chain that it finishes.

    If the platform deletes the chain, neither side finds the chain.
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
