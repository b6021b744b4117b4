"""A tag whose chain has ended is used again: one caller succeeds, and nothing of the first chain counts."""

import pytest

from s3notify_platform.kernel.errors import TagExists, TagNotFound
from s3notify_platform.protocols.ack_chain import AckChains, xor
from s3notify_platform.protocols.ack_chain.chain_records import head_key
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HurriedClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at

A, B = (bytes([byte]) * 16 for byte in (1, 2))


def test_a_holder_of_the_former_chain_gets_tag_not_found(records):
    """Otherwise stamps of the former chain would count in the new chain, or stay as garbage."""
    chains = AckChains(records)
    old = chains.create("t", xor(A, B))
    chains.stamp(old, A)
    chains.stamp(old, B, operation_id="b")
    new = chains.open_batch("t", ["1"], reuse=True)
    for call in (
        lambda: chains.stamp(old, B, operation_id="b"),
        lambda: chains.state(old),
        lambda: chains.fail(old, "x"),
    ):
        with pytest.raises(TagNotFound):
            call()
    assert [record.key for record in records.scan("ack")] == [head_key("t")]
    assert chains.state(new).missing == ("1",)


def test_a_reuse_sends_only_the_documented_requests():
    """Otherwise `reuse` would cost more requests than documented, with or without a former chain of the tag."""
    objects = CountingStore(MemoryObjectStore())
    chains = AckChains(ObjectRecordStore(objects, "r/"))
    old = chains.open_batch("t", ["1"], reuse=True)
    assert objects.counts == {"PUT": 1}
    chains.finish(old)
    # The record store finds out once whether the bucket honours conditions on DELETE. The requests for this are sent
    # here, so that they are not counted below.
    chains.finish(chains.open_batch("t", ["2"], reuse=True))
    objects.counts.clear()
    chains.open_batch("t", ["3"], reuse=True)
    assert objects.counts == {"PUT": 2, "GET": 3, "LIST": 2, "DELETE": 1}


def test_a_chain_whose_last_stamper_died_has_ended(records):
    """Otherwise the tag of the chain could not be used again, because nobody has closed the chain."""
    chains = AckChains(records)
    chains.open_batch("t", ["1"])
    dying = AckChains(FaultyStore(records, at("scan", Fault.CRASH_BEFORE)), clock=HurriedClock())
    with pytest.raises(CrashedError):
        dying.stamp_children("t", ["1"], "op")
    chains.open_batch("t", ["2"], reuse=True)
    assert chains.state("t").missing == ("2",)


def test_one_of_several_concurrent_reuses_succeeds(records):
    """Otherwise two callers would both get a new chain under one tag."""
    chains = AckChains(records)
    old = chains.open_batch("t", ["1"])
    chains.finish(old)

    class Overtaken:
        def __getattr__(self, name):
            return getattr(records, name)

        def replace(self, *args, **kwargs):
            if chains.state("t").status == "acked":
                chains.open_batch("t", ["theirs"], reuse=True)
            return records.replace(*args, **kwargs)

    with pytest.raises(TagExists):
        AckChains(Overtaken()).open_batch("t", ["ours"], reuse=True)
    assert chains.state("t").missing == ("theirs",)
