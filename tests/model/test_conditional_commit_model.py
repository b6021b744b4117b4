"""Native commits and commits by leases, under lost and refused requests, compared with a model. The model is a
dictionary of paths.
"""

from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from s3notify_platform.kernel.errors import NotFoundError, UnknownOutcomeError
from s3notify_platform.kernel.ports import Conflict, ETag, Written
from s3notify_platform.protocols.conditional_commit import DynamoCommit, NativeCommit
from s3notify_platform.stores.dynamodb.lease_table import DynamoLeases
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.contracts.ignoring_store import IgnoringStore
from tests.support.dynamo import CONFIG, Client, TableInMemory
from tests.support.faults import Fault, FaultyStore, scripted
from tests.support.lease_commits import ManualClock
from tests.support.record_leases import RecordLeases

PATHS = st.sampled_from(["a", "b", "c"])
FAULTS = st.dictionaries(st.integers(0, 6), st.sampled_from([Fault.LOST, Fault.REFUSED]), max_size=3)


class CommitMachine(RuleBasedStateMachine):
    """Commits of all kinds, one after another. The expected ETag is the current one or an old one."""

    by_leases = False

    def __init__(self):
        super().__init__()
        self.store = self.make_store()
        self.model: dict[str, bytes] = {}
        self.gone: list[ETag] = [ETag("0" * 32)]
        self.count = 0
        self.clock = ManualClock()

    def make_store(self):
        return MemoryObjectStore()

    def make_commit(self, faults):
        return NativeCommit(FaultyStore(self.store, scripted(faults)), clock=self.clock)

    def body(self):
        self.count += 1
        return b"%d" % self.count

    def expected(self, path, current):
        found = self.store.head(path)
        return found.etag if found and current else self.gone[-1]

    def has(self, path, etag):
        found = self.store.head(path)
        return found is not None and found.etag == etag

    def apply(self, path, holds, body, send):
        """Calls `send`, a commit that writes `body` to `path`. None as `body` deletes the object. `holds`: True if the
        commit's precondition holds.
        """
        before = self.store.head(path)
        try:
            outcome = send()
        except UnknownOutcomeError:
            # A delete leaves no writer id, and a write that cannot win leaves no trace.
            assert not self.by_leases
            assert body is None or not holds
            found = self.store.get(path)
            now = found.body if found else None
            assert now in (self.model.get(path), body)
            applied = holds and now == body
        else:
            applied = outcome != Conflict()
            assert applied == holds
            if applied:
                assert isinstance(outcome, Written)
                found = self.store.head(path)
                assert outcome.etag == (found.etag if found else None)
        if applied and before is not None:
            self.gone.append(before.etag)
        if applied and body is None:
            del self.model[path]
        elif applied and body is not None:
            self.model[path] = body

    @rule(path=PATHS, faults=FAULTS)
    def create(self, path, faults):
        """Creates an object. The creation wins if the object does not exist."""
        body, commit = self.body(), self.make_commit(faults)
        self.apply(path, path not in self.model, body, lambda: commit.put_if_absent(path, body))

    @rule(path=PATHS, current=st.booleans(), faults=FAULTS)
    def update(self, path, current, faults):
        """Replaces an object. The replacement wins if the expected ETag is the current one."""
        body, commit, etag = self.body(), self.make_commit(faults), self.expected(path, current)
        holds = self.has(path, etag)
        self.apply(path, holds, body, lambda: commit.put_if_match(path, body, etag))

    @rule(path=PATHS, current=st.booleans(), faults=FAULTS)
    def delete(self, path, current, faults):
        """Deletes an object. The delete wins if the expected ETag is the current one."""
        commit, etag = self.make_commit(faults), self.expected(path, current)
        holds = self.has(path, etag)
        self.apply(path, holds, None, lambda: commit.delete_if_match(path, etag))

    @rule(source=PATHS, to=PATHS, faults=FAULTS)
    def copy(self, source, to, faults):
        """Copies an object. The copy wins if the target does not exist. The copy needs an existing source."""
        commit = self.make_commit(faults)
        if source == to:
            return
        if source not in self.model:
            with suppress(NotFoundError, UnknownOutcomeError):
                assert commit.copy_if_absent(source, to) == Conflict()
                assert to in self.model
            return
        body = self.model[source]
        self.apply(to, to not in self.model, body, lambda: commit.copy_if_absent(source, to))

    @invariant()
    def the_store_is_the_model(self):
        """Compares every path and body with the model."""
        found = {path: self.store.get(path) for path in ("a", "b", "c")}
        assert {path: one.body for path, one in found.items() if one} == self.model


class LeaseMachine(CommitMachine):
    """The same machine with commits by leases, on a store that ignores every condition. In this machine, every write
    whose outcome is unknown is resolved.
    """

    by_leases = True

    def make_store(self):
        self.records = MemoryRecordStore()
        return IgnoringStore(MemoryObjectStore(), {"create", "match", "delete", "copy"})

    def make_commit(self, faults):
        leases = RecordLeases(FaultyStore(self.records, scripted(faults)))
        return DynamoCommit(FaultyStore(self.store, scripted(faults)), leases, clock=self.clock)


class DynamoLeaseMachine(LeaseMachine):
    """The same machine with the leases in DynamoDB."""

    def make_store(self):
        self.items = TableInMemory("path", "etag")
        return super().make_store()

    def make_commit(self, faults):
        client = Client(FaultyStore(self.items, scripted(faults)))
        leases = DynamoLeases(CONFIG, clock=self.clock, client=client)
        return DynamoCommit(FaultyStore(self.store, scripted(faults)), leases, clock=self.clock)


TestNativeCommit = CommitMachine.TestCase
TestDynamoCommit = LeaseMachine.TestCase
TestDynamoCommitInDynamo = DynamoLeaseMachine.TestCase
