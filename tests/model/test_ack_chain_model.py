"""Ack chains as a state machine against a simple model: sets of children, and a status."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from s3notify_platform.kernel.errors import TagExists, TagNotFound, UsageError
from s3notify_platform.protocols.ack_chain import (
    AckChains,
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    Stamped,
    in_order,
    new_stamp,
    xor,
)
from s3notify_platform.protocols.ack_chain.chain_records import belongs_to, is_head
from s3notify_platform.protocols.ack_chain.names import places
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HurriedClock
from tests.support.dynamo import CONFIG, Client, TableInMemory
from tests.support.faults import CrashedError, Fault, FaultyStore, at

TAGS = st.sampled_from(["one", "two"])
NAMES = st.sets(st.sampled_from(["0", "1", "2", "10", "999", "a", "b"]), min_size=1, max_size=4)
OPERATIONS = st.sampled_from(["op1", "op2", "op3", None])
STUMBLES = st.sampled_from([Fault.NONE, Fault.LOST, Fault.REFUSED, Fault.LATE])


class LateClock(HurriedClock):
    """A clock whose time is long after all events of the test."""

    def wall_ms(self):
        return super().wall_ms() + 30 * 24 * 3600 * 1000


class Model:
    """The model of one chain: its missing children and how it ended."""

    def __init__(self, chain, children, *, raw=None):
        self.chain = chain
        self.children = set(children)
        self.missing = set(children)
        self.status = "open"
        self.reason = None
        self.raw = raw
        """The missing stamps by operation, for a chain of raw stamps."""
        self.late = set()
        """Children that stamps began after the chain had failed. The chain's state may show these children, or not."""
        self.last = object()
        """The operation that gets `Acked`; `UNCLAIMED` if the next operation gets it."""


UNCLAIMED = object()


class AckMachine(RuleBasedStateMachine):
    """Every client agrees with the model, with lost, refused and late writes in between."""

    @initialize()
    def start(self):
        self.records = self.make_records()
        self.models = {}
        self.gone = []
        """Deleted chains; some processes still have a `Chain` for such a chain."""
        self.clients = [AckChains(FaultyStore(self.records), clock=HurriedClock()) for _ in range(2)]

    def make_records(self):
        return MemoryRecordStore()

    def client(self, method, fault, nth=0):
        """One of two processes, with a fault at the nth call of this method."""
        self.clients.append(self.clients.pop(0))
        chains = self.clients[0]
        self.faulty = chains._records
        self.faulty.schedule = at(method, fault, nth=nth)
        return chains

    def named(self, tag, by_tag):
        """The chain, or only its tag."""
        return tag if by_tag or tag not in self.models else self.models[tag].chain

    @rule()
    def restart(self):
        self.clients[0] = AckChains(FaultyStore(self.records), clock=HurriedClock())

    def begins(self, tag, reuse):
        """True if a new chain may have this tag. In this case, the former chain of the tag moves to `gone`."""
        if tag in self.models and not (reuse and self.models[tag].status != "open"):
            return False
        if tag in self.models:
            self.gone.append(self.models.pop(tag))
        return True

    @rule(
        tag=TAGS,
        names=NAMES,
        fault=STUMBLES,
        method=st.sampled_from(["create", "replace"]),
        reuse=st.booleans(),
    )
    def open_batch(self, *, tag, names, fault, method, reuse):
        chains = self.client(method, fault)
        if self.begins(tag, reuse):
            chain = chains.open_batch(tag, names, payload=tag, reuse=reuse)
            self.models[tag] = Model(chain, names)
        else:
            with pytest.raises(TagExists):
                chains.open_batch(tag, names, reuse=reuse)
        self.faulty.settle()

    @rule(tag=TAGS, count=st.integers(2, 4), reuse=st.booleans())
    def create_raw(self, tag, count, reuse):
        stamps = {f"raw{n}": new_stamp() for n in range(count)}
        chains = self.client("create", Fault.NONE)
        if not self.begins(tag, reuse):
            with pytest.raises(TagExists):
                chains.create(tag, xor(*stamps.values()), reuse=reuse)
        else:
            chain = chains.create(tag, xor(*stamps.values()), payload=tag, reuse=reuse)
            self.models[tag] = Model(chain, (), raw=dict(stamps))
            self.models[tag].all = dict(stamps)

    @rule(tag=TAGS, operation=st.integers(0, 3), fault=STUMBLES, by_tag=st.booleans())
    def stamp_raw(self, *, tag, operation, fault, by_tag):
        model, name = self.models.get(tag), f"raw{operation}"
        if model is None or model.raw is None or name not in model.all:
            return
        chains, chain = self.client("create", fault), self.named(tag, by_tag)
        outcome = chains.stamp(chain, model.all[name], operation_id=name)
        self.faulty.settle()
        if model.status == "open":
            model.raw.pop(name, None)
            left = [*model.raw.values()]
            assert outcome.xor == xor(bytes(16), bytes(16), *left)
            if not left:
                model.status, model.last = "acked", name
                assert outcome == Acked()
            else:
                assert outcome == Stamped(missing=None)
        else:
            self.check_closed(model, outcome, name)

    @rule(
        tag=TAGS,
        names=NAMES,
        starts=NAMES | st.just(set()),
        operation=OPERATIONS,
        fault=STUMBLES,
        method=st.sampled_from(["create", "scan"]),
        nth=st.integers(0, 2),
        by_tag=st.booleans(),
    )
    def stamp_children(self, *, tag, names, starts, operation, fault, method, nth, by_tag):
        model, chain = self.models.get(tag), self.named(tag, by_tag)
        if model is None:
            with pytest.raises(TagNotFound):
                self.client(method, fault, nth).stamp_children(chain, names, operation)
            return
        if names & model.children:
            names &= model.children  # without this line, most calls would be invalid
        wrong = model.raw is not None or not names <= model.children
        if model.status == "open" and wrong:
            with pytest.raises(UsageError):
                self.client("none", fault).stamp_children(chain, names, operation)
            return
        if not names <= set(self.children_at_first(model)):
            nth += method == "scan"  # a fault at the first scan would raise an error
        outcome = self.client(method, fault, nth).stamp_children(chain, names, operation, starts=starts)
        self.faulty.settle()
        if model.status != "open":
            self.check_closed(model, outcome, operation)
            model.late |= starts
            return
        model.missing = (model.missing - names) | (starts - model.children)
        model.children |= starts
        if model.missing:
            assert outcome == Stamped(missing=len(model.missing))
        else:
            assert outcome == Acked()
            model.status, model.last = "acked", operation

    @rule(tag=TAGS, operation=OPERATIONS, fault=STUMBLES)
    def finish(self, *, tag, operation, fault):
        """Ends all children in one stamp. The chain's stamps must have begun no further children."""
        model = self.models.get(tag)
        if model is None or model.raw is not None or model.children != model.chain.children:
            return
        outcome = self.client("create", fault).finish(model.chain, operation)
        self.faulty.settle()
        if model.status != "open":
            self.check_closed(model, outcome, operation)
            return
        model.missing = set()
        model.status, model.last = "acked", operation
        assert outcome == Acked()

    def children_at_first(self, model):
        return places(model.chain.names)

    def check_closed(self, model, outcome, operation):
        if model.status == "failed":
            assert outcome == AlreadyFailed(reason=model.reason)
            return
        mine = model.last is UNCLAIMED or (operation is not None and operation == model.last)
        assert outcome == (Acked() if mine else AlreadyAcked())
        if model.last is UNCLAIMED:
            model.last = operation

    @rule(tag=TAGS, names=NAMES, fault=st.sampled_from([Fault.CRASH_BEFORE, Fault.CRASH_AFTER]))
    def stamper_dies(self, tag, names, fault):
        """A stamper dies before or after its write. If this stamp was the last one, the next caller that reads the
        chain finds it acked."""
        model = self.models.get(tag)
        if model is None or model.status != "open":
            return
        names &= model.missing
        if not names:
            return
        with pytest.raises(CrashedError):
            self.client("create", fault).stamp_children(tag, names, "dying")
        if fault is Fault.CRASH_AFTER:
            model.missing -= names
            if not model.missing:
                model.status, model.last = "acked", UNCLAIMED

    @rule(tag=TAGS, reason=st.sampled_from(["x", "y"]), fault=STUMBLES)
    def fail(self, tag, reason, fault):
        chains, model = self.client("create", fault), self.models.get(tag)
        if model is None:
            with pytest.raises(TagNotFound):
                chains.fail(tag, reason)
            return
        found = chains.fail(model.chain, reason)
        self.faulty.settle()
        if model.status == "open":
            model.status, model.reason = "failed", reason
        assert (found.status, found.reason) == (model.status, model.reason)

    @rule(tag=TAGS, fault=STUMBLES, nth=st.integers(0, 2))
    def delete(self, tag, fault, nth):
        chains = self.client("remove", fault, nth)
        if (model := self.models.pop(tag, None)) is None:
            with pytest.raises(TagNotFound):
                chains.delete(tag)
        else:
            chains.delete(tag)
            self.gone.append(model)
        self.faulty.settle()

    @rule(names=NAMES, fault=st.sampled_from([Fault.NONE, Fault.LATE]))
    def late_stamp(self, names, fault):
        """A stamp by a process whose chain was deleted. Another chain may have the same tag by now."""
        for model in self.gone:
            chains = self.client("create", fault)
            with pytest.raises(TagNotFound):
                _ = (
                    chains.stamp_children(model.chain, names & model.children)
                    if model.raw is None
                    else chains.stamp(model.chain, new_stamp())
                )
            with pytest.raises(TagNotFound):
                chains.state(model.chain)
            self.faulty.settle()

    @invariant()
    def states_agree(self):
        chains = AckChains(self.records)
        assert set(chains.tags()) == self.models.keys()
        for tag, model in self.models.items():
            state = chains.state(tag)
            assert state == chains.state(replace(model.chain, payload=tag))
            assert (state.status, state.reason, state.payload) == (model.status, model.reason, tag)
            assert list(state.children) == in_order(model.children | (model.late & {*state.children}))
            assert list(state.missing) == in_order(model.missing if model.status != "acked" else ())
        found = [state.tag for state in chains.open_states()]
        assert found == sorted(tag for tag, model in self.models.items() if model.status == "open")

    @rule()
    def purge_takes_nothing_before_its_time(self):
        """A purge removes only the remains of deleted chains, because no chain's retention has ended."""
        AckChains(self.records).purge()
        chains = [model.chain for model in self.models.values()]
        for record in self.records.scan("ack"):
            tag = record.key.partition("\0")[0]
            identities = [chain.identity for chain in chains if chain.tag == tag]
            assert identities
            assert is_head(record.key) or belongs_to(record.key, identities[0])

    @rule()
    def purge_after_a_while(self):
        ended = [tag for tag, model in self.models.items() if model.status != "open"]
        assert AckChains(self.records, clock=LateClock()).purge() == len(ended)
        for tag in ended:
            self.gone.append(self.models.pop(tag))


class ObjectsMachine(AckMachine):
    """The same machine with records on a bucket."""

    def make_records(self):
        return ObjectRecordStore(MemoryObjectStore(), "records/", clock=HurriedClock())


class DynamoMachine(AckMachine):
    """The same machine with records in DynamoDB."""

    def make_records(self):
        return DynamoRecordStore(
            CONFIG, clock=HurriedClock(), client=Client(TableInMemory("partition", "key"))
        )


TestAckChain = AckMachine.TestCase
TestAckChainOnObjects = ObjectsMachine.TestCase
TestAckChainOnDynamo = DynamoMachine.TestCase
for case in (TestAckChain, TestAckChainOnObjects, TestAckChainOnDynamo):
    case.settings = settings(stateful_step_count=30, deadline=None)
