"""The client of shared chains: sends plans to a record store. The package's docstring states the guarantees."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from blake3 import blake3

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.errors import (
    StaleLocalData,
    TagExists,
    TagNotFound,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.kernel.group_commit import GroupCommit
from s3notify_platform.kernel.ports import Record, RecordStore, Written
from s3notify_platform.protocols.ack_chain.shared.plans import (
    Plan,
    Stamp,
    combine,
    failed,
)
from s3notify_platform.protocols.ack_chain.shared.record import (
    SHARED_OPERATION_BYTES,
    Chain,
    child_stamp,
    decode,
    encode,
    facts,
)
from s3notify_platform.protocols.ack_chain.stamps import (
    TOMBSTONE_SECONDS,
    ChainState,
    StampOutcome,
    check_facts,
    check_new,
    check_stamp,
    with_xor,
    xor_all,
)
from s3notify_platform.protocols.updates import Changed, Stored, Updates

T = TypeVar("T")

SEED_BYTES: Final = 32

SHARED_ATTEMPTS: Final = 40
"""The maximum number of attempts to read and replace one record. After the last attempt, `StaleLocalData` is raised.
The backoff of all attempts together is about 35 s on average."""


class SharedChains:
    """The chains of one partition of a record store. Each chain is one record. Thread-safe.

    Requests without contention: create 1, stamp 2, state 1, fail 2, delete 2. If n threads stamp one chain at the same
    time, they take at most 4 requests together. `SHARED_ATTEMPTS` bounds the attempts of each operation.
    """

    def __init__(
        self,
        records: RecordStore,
        *,
        clock: Clock = SYSTEM_CLOCK,
        partition: str = "ack",
        tombstone_seconds: float = TOMBSTONE_SECONDS,
    ) -> None:
        self._records = records
        self._clock = clock
        self._partition = partition
        self._tombstone_seconds = tombstone_seconds
        self._together = GroupCommit()
        self._updates = Updates(records, clock, rounds=SHARED_ATTEMPTS, contended=StaleLocalData)

    def create(
        self,
        tag: str,
        stamp: bytes,
        *,
        children: Mapping[str, bytes] | None = None,
        deadline_seconds: float | None = None,
        payload: str = "",
        reuse: bool = False,
    ) -> ChainState:
        """Begins a chain whose XOR is `stamp`; `TagExists` if a chain, open or ended, has this tag. Cost: 1 request.

        `children` names all children of the new chain; `stamp` must be the XOR of their stamps. `reuse` also replaces a
        chain that has ended, as the npm package does, so `TagExists` is raised only if the tag's chain is open. Stamps
        name only the tag, so late stamps of the old chain count in the new chain. `reuse` takes up to 2 more requests.
        """
        check_new(stamp)
        if children and xor_all(children.values()) != stamp:
            raise UsageError(f"chain {tag!r}: its stamp is not the XOR of its children's stamps")
        names = frozenset(children or ())
        return self._create(tag, stamp, names, deadline_seconds, payload, reuse=reuse)

    def open_batch(
        self,
        tag: str,
        children: Iterable[str],
        *,
        deadline_seconds: float | None = None,
        payload: str = "",
        reuse: bool = False,
    ) -> ChainState:
        """Begins a chain of children that are stamped by name; `TagExists` if the tag is in use. Cost: 1 request.

        `reuse`: as in `create`.
        """
        names = frozenset(children)
        if not names:
            raise UsageError(f"chain {tag!r} has no children: it could never be acked")
        seed = self._clock.random_bytes(SEED_BYTES)
        stamp = xor_all(child_stamp(seed, name) for name in names)
        return self._create(tag, stamp, names, deadline_seconds, payload, seed=seed, reuse=reuse)

    def stamp(
        self,
        tag: str,
        stamp: bytes,
        *,
        operation_id: str | None = None,
        children: Iterable[str] = (),
        starts: Iterable[str] = (),
    ) -> StampOutcome:
        """XORs `stamp` into the chain. A stamp that is sent again with its operation id counts once. Cost: 2 requests.

        `Stamped` and `Acked` contain the resulting XOR, which the npm package's `stamp` returns. `children` names the
        children that the stamp ends; `starts` names the children that the stamp begins. Without an operation id, a
        repeated call is a new stamp. A stamp changes nothing if all its children have ended before. `UsageError` if
        only some of the stamp's children have ended: a stamp cannot be split.
        """
        outcome = self._stamp(tag, children, starts, operation_id, raw=check_stamp(stamp))
        return with_xor(outcome, stamp)

    def stamp_children(
        self, tag: str, names: Iterable[str], operation_id: str | None = None, *, starts: Iterable[str] = ()
    ) -> StampOutcome:
        """Ends the children `names` of an `open_batch` chain, and begins the children `starts`, in one stamp. Cost: 2
        requests.

        The call is idempotent by name: children that any caller has ended before are skipped. With the operation id, a
        retry of the stamp that acked the chain returns `Acked` again.
        """
        return self._stamp(tag, names, starts, operation_id)

    def fail(self, tag: str, reason: str) -> ChainState:
        """Closes an open chain as failed. Returns the state afterwards; a closed chain stays unchanged. Cost: 2
        requests.
        """
        plan = partial(failed, reason=reason, expires_ms=self._expiry_ms())
        return facts(tag, self._change(plan, tag))

    def state(self, tag: str) -> ChainState:
        """The chain's facts; `TagNotFound` if the chain does not exist. Cost: 1 request."""
        return facts(tag, _existing(tag, self._records.read(self._partition, tag)))

    def states(self) -> Iterator[ChainState]:
        """The states of all chains, open or closed, in tag order. One scan."""
        for record in self._records.scan(self._partition):
            yield facts(record.key, decode(record.key, record.value))

    def delete(self, tag: str) -> None:
        """Deletes the chain, open or closed; `TagNotFound` if it does not exist. Cost: 2 requests."""
        identity: str | None = None
        for _ in attempts(self._clock, SHARED_ATTEMPTS):
            record = self._records.read(self._partition, tag)
            if record is None and identity is not None:
                return
            found = _existing(tag, record).identity
            if record is None or identity not in (None, found):
                return  # another caller has created a chain with this tag meanwhile
            identity = found
            try:
                outcome = self._updates.remove(self._partition, tag, expected=record.version)
            except UnknownOutcomeError as error:
                raise UnknownOutcomeError(
                    f"ack chain {tag!r} may or may not be deleted: delete it again"
                ) from error
            if isinstance(outcome, Stored) or outcome.record is None:
                return
        raise StaleLocalData(f"ack chain {tag!r} kept changing while it was deleted: delete it again")

    def purge(self) -> int:
        """Deletes closed chains that have expired by this machine's clock. Returns the number of these chains. The call
        only frees space. One scan.
        """
        now_ms = self._clock.wall_ms()
        purged = 0
        for record in self._records.scan(self._partition):
            chain = decode(record.key, record.value)
            if chain.expires_ms is not None and chain.expires_ms <= now_ms:
                outcome = self._records.remove(self._partition, record.key, expected=record.version)
                purged += isinstance(outcome, Written)
        return purged

    # Beginning a chain

    def _create(
        self,
        tag: str,
        stamp: bytes,
        names: frozenset[str],
        deadline_seconds: float | None,
        payload: str,
        *,
        reuse: bool,
        seed: bytes = b"",
    ) -> ChainState:
        if not tag:
            raise UsageError("an ack chain needs a tag")
        check_facts(deadline_seconds, payload)
        chain = Chain(
            identity=unique_name(self._clock),
            stamp=stamp,
            children=names,
            missing=names,
            seed=seed,
            deadline_seconds=deadline_seconds,
            created_ms=self._clock.wall_ms(),
            payload=payload,
        )
        opened, value = facts(tag, chain), encode(chain)
        outcome = self._updates.create(self._partition, tag, value)
        if reuse and isinstance(outcome, Changed) and (old := outcome.record) is not None:
            there = decode(tag, old.value)
            if there.status != "open" and there.identity != chain.identity:
                outcome = self._updates.replace(self._partition, tag, value, expected=old.version)
        if isinstance(outcome, Stored):
            return opened
        # After a write whose outcome is unknown, the chain in the store may be the chain that this call created. Others
        # may have stamped this chain already.
        found = outcome.record
        if found is not None and decode(tag, found.value).identity == chain.identity:
            return opened
        if found is None and outcome.in_doubt:
            raise UnknownOutcomeError(f"ack chain {tag!r} may have been created, and deleted since")
        raise TagExists(f"ack chain {tag!r} exists")

    # Stamping

    def _stamp(
        self,
        tag: str,
        ending: Iterable[str],
        beginning: Iterable[str],
        operation_id: str | None,
        raw: bytes | None = None,
    ) -> StampOutcome:
        drawn = operation_id if operation_id is not None else unique_name(self._clock)
        plan = Stamp(
            tag=tag,
            operation=blake3(drawn.encode("utf-8")).digest(length=SHARED_OPERATION_BYTES),
            ending=frozenset(ending),
            beginning=frozenset(beginning),
            expires_ms=self._expiry_ms(),
            raw=raw,
        )
        return self._change(plan, tag)

    # Changing a record

    def _change(self, plan: Plan[T], tag: str) -> T:
        """Applies a plan, together with plans of other threads for the same record."""
        result: T = self._together.run(tag, plan, partial(self._send, tag))
        return result

    def _send(self, tag: str, plans: Sequence[Plan[Any]]) -> Sequence[Any]:
        """Returns the plans' results, after at most one write that contains the changes of all plans."""

        def decide(record: Record | None) -> tuple[bytes | None, Sequence[Any]]:
            after, results = combine(_existing(tag, record), plans)
            return None if after is None else encode(after), results

        return self._updates.change(self._partition, tag, decide)[0]

    def _expiry_ms(self) -> int:
        return self._clock.wall_ms() + int(self._tombstone_seconds * 1000)


def _existing(tag: str, record: Record | None) -> Chain:
    if record is None:
        raise TagNotFound(f"no ack chain {tag!r}")
    return decode(tag, record.value)
