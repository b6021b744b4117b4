"""Ack chains as a state machine against a plain model: sets of children, and a status."""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from s3notify_platform.errors import TagExists, TagNotFound, UsageError
from s3notify_platform.protocols.ack_chain import (
    AckChains,
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    Stamped,
    child_stamp,
    in_order,
    new_stamp,
    xor,
)
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
WRITES = st.sampled_from(["create", "replace"])


class Model:
    """One chain: what must still be stamped, and how it ended."""

    def __init__(self, children, *, raw=None):
        self.children = set(children)
        self.missing = set(children)
        self.status = "open"
        self.reason = None
        self.raw = raw
        """Stamps still out, by operation, of a chain of raw stamps."""
        self.last = object()


class AckMachine(RuleBasedStateMachine):
    """Any client, with lost, refused and late writes in between, agrees with the model."""

    @initialize()
    def start(self):
        self.records = self.make_records()
        self.models = {}
        self.clients = [AckChains(FaultyStore(self.records), clock=HurriedClock()) for _ in range(2)]

    def make_records(self):
        return MemoryRecordStore()

    def client(self, method, fault, nth=0):
        """A new process, or one of two that remember what they have seen."""
        self.clients.append(self.clients.pop(0))
        chains = self.clients[0]
        self.faulty = chains._records
        self.faulty.schedule = at(method, fault, nth=nth)
        return chains

    @rule()
    def restart(self):
        self.clients[0] = AckChains(FaultyStore(self.records), clock=HurriedClock())

    @rule(tag=TAGS, names=NAMES, fault=STUMBLES)
    def open_batch(self, tag, names, fault):
        chains = self.client("create", fault)
        if tag in self.models:
            with pytest.raises(TagExists):
                chains.open_batch(tag, names)
        else:
            chains.open_batch(tag, names, payload=tag)
            self.models[tag] = Model(names)
        self.faulty.settle()

    @rule(tag=TAGS, count=st.integers(2, 4))
    def create_raw(self, tag, count):
        stamps = {f"raw{n}": new_stamp() for n in range(count)}
        chains = self.client("create", Fault.NONE)
        if tag in self.models:
            with pytest.raises(TagExists):
                chains.create(tag, xor(*stamps.values()))
        else:
            chains.create(tag, xor(*stamps.values()), payload=tag)
            self.models[tag] = Model((), raw=dict(stamps))
            self.models[tag].all = dict(stamps)

    @rule(tag=TAGS, operation=st.integers(0, 3), fault=STUMBLES)
    def stamp_raw(self, tag, operation, fault):
        model, name = self.models.get(tag), f"raw{operation}"
        if model is None or model.raw is None or name not in model.all:
            return
        outcome = self.client("replace", fault).stamp(tag, model.all[name], operation_id=name)
        self.faulty.settle()
        if model.status == "open":
            model.raw.pop(name, None)
            if not model.raw:
                model.status, model.last = "acked", name
                assert outcome == Acked()
            else:
                assert outcome == Stamped(missing=0)
        else:
            self.check_closed(model, outcome, name)

    @rule(
        tag=TAGS,
        names=NAMES,
        starts=NAMES | st.just(set()),
        operation=OPERATIONS,
        fault=STUMBLES,
        method=WRITES,
        nth=st.integers(0, 2),
    )
    def stamp_children(self, *, tag, names, starts, operation, fault, method, nth):
        chains, model = self.client(method, fault, nth), self.models.get(tag)
        if model is None:
            with pytest.raises(TagNotFound):
                chains.stamp_children(tag, names, operation)
            return
        if names & model.children:
            names &= model.children  # mostly legal calls
        wrong = model.raw is not None or not names <= model.children
        if model.status == "open" and wrong:
            with pytest.raises(UsageError):
                chains.stamp_children(tag, names, operation)
            return
        outcome = chains.stamp_children(tag, names, operation, starts=starts)
        self.faulty.settle()
        if model.status != "open":
            self.check_closed(model, outcome, operation)
            return
        model.missing = (model.missing - names) | (starts - model.children)
        model.children |= starts
        if model.missing:
            assert outcome == Stamped(missing=len(model.missing))
        else:
            assert outcome == Acked()
            model.status, model.last = "acked", operation

    def check_closed(self, model, outcome, operation):
        if model.status == "failed":
            assert outcome == AlreadyFailed(reason=model.reason)
        else:
            mine = operation is not None and operation == model.last
            assert outcome == (Acked() if mine else AlreadyAcked())

    @rule(tag=TAGS, names=NAMES, fault=st.sampled_from([Fault.CRASH_BEFORE, Fault.CRASH_AFTER]))
    def stamper_dies(self, tag, names, fault):
        """Before or after its write; either way a retry makes it whole."""
        model = self.models.get(tag)
        if model is None or model.status != "open":
            return
        names &= model.missing
        if not names:
            return
        with pytest.raises(CrashedError):
            self.client("replace", fault).stamp_children(tag, names, "dying")
        if fault is Fault.CRASH_AFTER:
            model.missing -= names
            if not model.missing:
                model.status, model.last = "acked", "dying"

    @rule(tag=TAGS, reason=st.sampled_from(["x", "y"]), fault=STUMBLES)
    def fail(self, tag, reason, fault):
        chains, model = self.client("replace", fault), self.models.get(tag)
        if model is None:
            with pytest.raises(TagNotFound):
                chains.fail(tag, reason)
            return
        found = chains.fail(tag, reason)
        self.faulty.settle()
        if model.status == "open":
            model.status, model.reason = "failed", reason
        assert (found.status, found.reason) == (model.status, model.reason)

    @rule(tag=TAGS, fault=STUMBLES)
    def delete(self, tag, fault):
        chains = self.client("remove", fault)
        if self.models.pop(tag, None) is None:
            with pytest.raises(TagNotFound):
                chains.delete(tag)
        else:
            chains.delete(tag)
        self.faulty.settle()

    @invariant()
    def states_agree(self):
        chains = AckChains(self.records)
        found = {state.tag: state for state in chains.states()}
        assert found.keys() == self.models.keys()
        for tag, model in self.models.items():
            state = found[tag]
            assert state == chains.state(tag)
            assert (state.status, state.reason, state.payload) == (model.status, model.reason, tag)
            assert list(state.children) == in_order(model.children)
            assert list(state.missing) == in_order(model.missing if model.status != "acked" else ())
            record = json.loads(self.records.read("ack", tag).value)
            if model.raw is None:
                seed = bytes.fromhex(record["seed"])
                out = [child_stamp(seed, name) for name in model.missing]
            else:
                out = list(model.raw.values())
            # The XOR is that of what is out, at every moment and not only at the end.
            assert bytes.fromhex(record["stamp"]) == xor(bytes(16), bytes(16), *out)

    @rule()
    def purge_takes_nothing_before_its_time(self):
        AckChains(self.records).purge()


class ObjectsMachine(AckMachine):
    """The same with records on a bucket."""

    def make_records(self):
        return ObjectRecordStore(MemoryObjectStore(), "records/", clock=HurriedClock())


class DynamoMachine(AckMachine):
    """The same with records in DynamoDB."""

    def make_records(self):
        return DynamoRecordStore(
            CONFIG, clock=HurriedClock(), client=Client(TableInMemory("partition", "key"))
        )


TestAckChain = AckMachine.TestCase
TestAckChainOnObjects = ObjectsMachine.TestCase
TestAckChainOnDynamo = DynamoMachine.TestCase
for case in (TestAckChain, TestAckChainOnObjects, TestAckChainOnDynamo):
    case.settings = settings(stateful_step_count=30, deadline=None)
