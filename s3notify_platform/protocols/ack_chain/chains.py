"""The client of ack chains. The package's docstring states the guarantees."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Final

from s3notify_platform.kernel.attempts import ATTEMPTS, attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock, unique_name
from s3notify_platform.kernel.errors import (
    BufferLengthsUnequal,
    S3NotifyError,
    TagExists,
    TagNotFound,
    UnavailableError,
    UnknownOutcomeError,
    UsageError,
)
from s3notify_platform.kernel.ports import Record, RecordStore, Unknown, Version
from s3notify_platform.protocols.ack_chain.chain_records import (
    Chain,
    Closed,
    Seen,
    belongs_to,
    closed_key,
    decode_closed,
    decode_head,
    encode_closed,
    encode_head,
    facts_of,
    has_value,
    head_key,
    identity_of,
    is_closed,
    is_head,
    operation_of,
    prefix_of,
    raw_record,
    seen,
    stamp_record,
    tag_of,
)
from s3notify_platform.protocols.ack_chain.names import dump_names, in_order, places
from s3notify_platform.protocols.ack_chain.stamps import (
    TOMBSTONE_SECONDS,
    Acked,
    AlreadyAcked,
    AlreadyFailed,
    ChainState,
    Ended,
    Stamped,
    StampOutcome,
    Tag,
    check_facts,
    check_new,
    check_stamp,
    with_xor,
)
from s3notify_platform.protocols.updates import Changed, RecordOutcome, Stored, Updates

ACK: Final = "ack"
"""The default partition of chains."""

TAG_BYTES_MAX: Final = 200

_NOT_YET: Final = Version("")


def keys_recur(partition: str) -> bool:
    """True if a removed key of this partition may be created again. False for keys of ack chains.

    Pass this function to `ObjectRecordStore`. The record store then leaves no tombstones for keys of chains, on servers
    like Ceph RGW. Do not pass the function if tags are used again (`reuse`).
    """
    return partition != ACK and not partition.startswith(f"{ACK}.")


class AckChains:
    """The ack chains of one partition of a record store. Thread-safe.

    Methods take a tag or a `Chain`. A tag costs 1 request more than a `Chain`, because the head is read. `open_batch`,
    `create` and `chain` return a `Chain`, which may be passed to other processes.

    Requests, for any number of stampers: create 1, stamp 2, finish 1, state 1, fail 2. The stamp that closes the chain
    costs 1 request more. A call that reads how the chain ended also costs 1 request more. The LIST in stamp and state
    takes 1 more request for each 1000 records.

    `UnavailableError`: nothing was applied; retry later. `UnknownOutcomeError`: perhaps applied; repeat the call.
    """

    def __init__(
        self,
        records: RecordStore,
        *,
        clock: Clock = SYSTEM_CLOCK,
        partition: str = ACK,
        tombstone_seconds: float = TOMBSTONE_SECONDS,
        parallelism: int = 1,
    ) -> None:
        """`parallelism`: the number of records of a chain that are removed at the same time."""
        self._records = records
        self._clock = clock
        self._partition = partition
        self._tombstone_seconds = tombstone_seconds
        self._parallelism = parallelism
        self._updates = Updates(records, clock)

    # Beginning

    def create(
        self,
        tag: str,
        stamp: bytes,
        *,
        deadline_seconds: float | None = None,
        payload: str = "",
        reuse: bool = False,
    ) -> Chain:
        """Begins a chain whose XOR is `stamp`; `TagExists` if a chain, open or ended, has this tag. Cost: 1 request.

        `reuse` also replaces a chain that has ended, so `TagExists` is raised only if the tag's chain is open. The old
        chain counts as deleted: holders of its `Chain` get `TagNotFound`. Late stamps that name only the tag count in
        the new chain. `reuse` takes up to 7 requests, and 1 for each record of the old chain. A record store on a
        bucket must be opened without `keys_recur` if tags are used again.
        """
        chain = Chain(
            tag=Tag(tag),
            version=_NOT_YET,
            stamp=check_new(stamp),
            deadline_seconds=deadline_seconds,
            payload=payload,
        )
        return self._create(chain, reuse=reuse)

    def open_batch(
        self,
        tag: str,
        children: Iterable[str],
        *,
        deadline_seconds: float | None = None,
        payload: str = "",
        reuse: bool = False,
    ) -> Chain:
        """Begins a chain of children that are stamped by name; `TagExists` if the tag is in use. Cost: 1 request.

        `reuse`: as in `create`.
        """
        names = frozenset(children)
        if not names:
            raise UsageError(f"chain {tag!r} has no children: it could never be acked")
        chain = replace(Chain.of(tag, _NOT_YET, names), deadline_seconds=deadline_seconds, payload=payload)
        return self._create(chain, reuse=reuse)

    def chain(self, tag: str) -> Chain:
        """The chain as it was opened; `TagNotFound` if it does not exist. Cost: 1 request."""
        head = self._records.read(self._partition, head_key(tag))
        if head is None:
            raise TagNotFound(f"no ack chain {tag!r}")
        return decode_head(tag, head)

    # Stamping

    def stamp(self, chain: Chain | str, stamp: bytes, *, operation_id: str | None = None) -> StampOutcome:
        """XORs `stamp` into a chain that `create` began. Each operation id counts once. Cost: 2 requests.

        `Stamped` and `Acked` contain the resulting XOR. An operation id identifies one stamp. Without an operation id,
        a repeated call is a new stamp.
        """
        chain, operation = self._known(chain), self._operation(operation_id)
        if not chain.stamp:
            raise UsageError(f"chain {chain.tag!r} has named children: stamp it by their names")
        if len(check_stamp(stamp)) != len(chain.stamp):
            raise BufferLengthsUnequal(
                f"a stamp of {len(stamp)} bytes in a chain of {len(chain.stamp)}-byte stamps"
            )
        return with_xor(self._put(chain, raw_record(chain, stamp, operation), operation), stamp)

    def stamp_children(
        self,
        chain: Chain | str,
        names: Iterable[str],
        operation_id: str | None = None,
        *,
        starts: Iterable[str] = (),
    ) -> StampOutcome:
        """Ends the children `names` of an `open_batch` chain, and begins `starts`, in one stamp. Cost: 2 requests.

        A child ends once, even if several workers stamp it. With the operation id, a retry of the last stamp returns
        `Acked` again. Cost: 1 request more if a stamp began one of `names`. `UsageError` if a child never began.
        """
        chain, operation = self._known(chain), self._operation(operation_id)
        ended = frozenset(names)
        if chain.stamp or not ended <= places(chain.names).keys():
            found = self._look(chain)
            if found.closed is not None:
                return self._outcome(found, operation)
            if chain.stamp:
                raise UsageError(f"chain {chain.tag!r} was created with stamps: use `stamp`")
            if unknown := ended - found.children:
                raise UsageError(f"chain {chain.tag!r} has no children {in_order(unknown)[:10]}")
        return self._put(chain, stamp_record(chain, ended, starts), operation)

    def finish(self, chain: Chain, operation_id: str | None = None) -> StampOutcome:
        """Ends all children of an `open_batch` chain in one stamp. Cost: 1 request.

        This method is only for chains whose stamps began no other children (`starts`). One stamp of all children brings
        the XOR to zero, so the call writes the chain's end directly, and reads no other stamps. The call may be
        repeated. If the chain was deleted, the call does not notice this, and leaves a record that `purge` removes.
        """
        if chain.stamp:
            raise UsageError(f"chain {chain.tag!r} was created with stamps: use `stamp`")
        operation = self._operation(operation_id)
        closed = self._close(chain, self._closing("acked", operation))
        if closed.status == "acked" and closed.operation == operation:
            return Acked()
        return self._outcome(self._look(chain), operation)

    # Looking

    def state(self, chain: Chain | str) -> ChainState:
        """The chain's facts; `TagNotFound` if the chain does not exist. Cost: 1 request, 2 if the chain has ended.

        `children` may include children that a stamp began after the chain had failed.
        """
        return facts_of(self._settled(self._look(chain)))

    def fail(self, chain: Chain | str, reason: str) -> ChainState:
        """Closes an open chain as failed; an ended chain stays unchanged. Returns the new state. Cost: 2 requests.

        A child that is stamped during this call may be reported as missing.
        """
        found = self._settled(self._look(chain))
        if found.closed is None:
            closed = self._closing("failed", reason=reason, missing=dump_names(found.missing))
            found = replace(found, closed=self._close(found.chain, closed))
        return facts_of(found)

    def tags(self) -> Iterator[str]:
        """The tags of all chains, open or ended, in order. Cost: 1 request for each 1000 records."""
        for tag, head, _ in self._groups(keys_only=lambda _: True):
            if head is not None:
                yield tag

    def open_states(self) -> Iterator[ChainState]:
        """The states of all open chains, by tag. Cost: 1 request for each 1000 records, 2 for each open chain."""
        for tag, head, others in self._groups(keys_only=lambda _: True):
            if head is None or closed_key(tag, head.version) in {record.key for record in others}:
                continue
            with suppress(TagNotFound):
                if (state := self.state(tag)).status == "open":
                    yield state

    # Removing

    def delete(self, chain: Chain | str) -> None:
        """Deletes the chain, open or ended; `TagNotFound` if it does not exist.

        Cost: 1 scan, 1 request for each record. The head is removed first; other records may be left to `purge`.
        """
        self._delete(self._known(chain))

    def purge(self) -> int:
        """Deletes chains whose retention has ended by this machine's clock; returns the number of these chains.

        Also removes the leftover records of deleted chains. The call only frees space. Cost: 1 request for each 1000
        records, for each chain that has ended, and for each removed record.
        """
        now_ms, purged = self._clock.wall_ms(), 0
        for tag, head, others in self._groups(keys_only=lambda key: not is_closed(key)):
            left = others
            if head is not None:
                chain = Chain.of(tag, head.version, ())
                left = [record for record in others if not belongs_to(record.key, chain.identity)]
                ends = [record for record in others if record.key == chain.closed_key]
                if ends and decode_closed(tag, ends[0].value).expires_ms <= now_ms:
                    self._delete(chain)
                    purged += 1
            if left:
                # A new chain may have begun after the scan had passed the tag's head. Its records must stay.
                now = self._records.read(self._partition, head_key(tag))
                identity = identity_of(now.version) if now is not None else ""
                self._remove([record for record in left if not belongs_to(record.key, identity)])
        return purged

    # Helpers

    def _create(self, chain: Chain, *, reuse: bool) -> Chain:
        tag = chain.tag
        if not tag or "\0" in tag or len(tag.encode("utf-8", "replace")) > TAG_BYTES_MAX:
            raise UsageError(f"tag {tag[:60]!r}: must have 1 to {TAG_BYTES_MAX} bytes and no NUL")
        check_facts(chain.deadline_seconds, chain.payload)
        chain = replace(chain, created_ms=self._clock.wall_ms())
        value = encode_head(chain, unique_name(self._clock))
        outcome = self._updates.create(self._partition, head_key(tag), value)
        old = outcome.record if reuse and isinstance(outcome, Changed) else None
        if old is not None:
            outcome = self._created_over(old, tag, value)
        if isinstance(outcome, Stored):
            return replace(chain, version=outcome.version)
        if outcome.record is None and outcome.in_doubt:
            raise UnknownOutcomeError(f"ack chain {tag!r} may have been created, and deleted since")
        raise TagExists(f"ack chain {tag!r} exists")

    def _created_over(self, head: Record, tag: str, value: bytes) -> RecordOutcome:
        """Replaces the head of a chain that has ended; `TagExists` if the chain has not ended."""
        with suppress(
            TagNotFound
        ):  # the head was changed meanwhile, so its version is not the expected version any more
            if (found := self._settled(self._look(decode_head(tag, head)))).closed is None:
                raise TagExists(f"ack chain {tag!r} exists, and has not ended")
            outcome = self._updates.replace(self._partition, head_key(tag), value, expected=head.version)
            if isinstance(outcome, Stored):
                self._clear(found.chain)
            return outcome
        return Changed(record=head, in_doubt=False)

    def _known(self, chain: Chain | str) -> Chain:
        return self.chain(chain) if isinstance(chain, str) else chain

    def _operation(self, operation_id: str | None) -> str:
        return operation_of(operation_id if operation_id is not None else unique_name(self._clock))

    def _put(self, chain: Chain, record: tuple[str, bytes], operation: str) -> StampOutcome:
        """Creates a stamp, then evaluates all stamps. The creation and the evaluation are safe to repeat."""
        sent, certain, cause = False, False, ""
        for attempt in attempts(self._clock):
            try:
                if not certain:
                    outcome = self._records.create(self._partition, *record)
                    sent, certain = True, not isinstance(outcome, Unknown)
                found = self._look(chain)
                if record[0] in found.keys or found.closed is not None:
                    return self._outcome(found, operation)
                certain = False
            except UnavailableError as error:
                if not sent and attempt == ATTEMPTS - 1:
                    raise
                cause = str(error)
            except TagNotFound:
                self._withdraw(record[0])
                raise
        raise UnknownOutcomeError(
            f"ack chain {chain.tag!r}: the stamp may have been applied; repeat it with the same names or id; {cause}"
        )

    def _withdraw(self, key: str) -> None:
        """Removes a stamp whose chain was deleted; if that fails, `purge` will remove the stamp."""
        with suppress(S3NotifyError):
            if (record := self._records.read(self._partition, key)) is not None:
                self._remove([record])

    def _outcome(self, found: Seen, operation: str) -> StampOutcome:
        """The result of a stamp. Closes the chain if this call is the first to see the chain's end."""
        closed = found.closed
        if closed is None:
            if not found.done:
                return Stamped(missing=len(found.missing) or None, xor=found.residue)
            closed = self._close(found.chain, self._closing("acked", operation))
        if closed.status == "failed":
            return AlreadyFailed(reason=closed.reason or "")
        winner = closed.operation or found.claimed or self._claim(found.chain, operation)
        return Acked() if winner == operation else AlreadyAcked()

    def _settled(self, found: Seen) -> Seen:
        """Closes the chain if all its children have ended. Returns the facts. A stamp can claim `Acked` later."""
        if found.closed is None and found.done:
            return replace(found, closed=self._close(found.chain, self._closing("acked")))
        return found

    def _closing(
        self, status: Ended, operation: str = "", *, reason: str | None = None, missing: str = "[]"
    ) -> Closed:
        expires_ms = self._clock.wall_ms() + int(self._tombstone_seconds * 1000)
        return Closed(
            status=status, operation=operation, reason=reason, missing=missing, expires_ms=expires_ms
        )

    def _close(self, chain: Chain, closed: Closed) -> Closed:
        """Closes the chain. The result differs from `closed` if another caller closed the chain first."""
        outcome = self._updates.create(self._partition, chain.closed_key, encode_closed(closed))
        if isinstance(outcome, Stored):
            return closed
        if outcome.record is None:
            raise TagNotFound(f"ack chain {chain.tag!r} was deleted while it was being closed")
        return decode_closed(chain.closed_key, outcome.record.value)

    def _claim(self, chain: Chain, operation: str) -> str:
        """The operation that gets `Acked`: `operation`, or another operation that claimed `Acked` first."""
        outcome = self._updates.create(self._partition, chain.claimed_key, operation.encode())
        if isinstance(outcome, Stored):
            return operation
        return outcome.record.value.decode("ascii", "replace") if outcome.record is not None else ""

    def _look(self, chain: Chain | str) -> Seen:
        """All records of the chain; `TagNotFound` if its head does not exist. Cost: 1 scan."""
        tag, known = (chain, None) if isinstance(chain, str) else (chain.tag, chain)
        records = list(
            self._records.scan(
                self._partition,
                prefix=prefix_of(tag),
                keys_only=lambda key: not (has_value(key) or (known is None and is_head(key))),
            )
        )
        head = next((record for record in records if is_head(record.key)), None)
        if head is None:
            raise TagNotFound(f"no ack chain {tag!r}")
        if known is None:
            known = decode_head(tag, head)
        elif head.version != known.version and self.chain(tag).version != known.version:
            raise TagNotFound(f"ack chain {tag!r} was deleted; its tag is in use again")
        return seen(known, records)

    def _delete(self, chain: Chain) -> None:
        try:
            self._updates.remove(self._partition, head_key(chain.tag), expected=chain.version)
        except UnknownOutcomeError as error:
            raise UnknownOutcomeError(
                f"ack chain {chain.tag!r} may or may not be deleted: delete it again"
            ) from error
        self._clear(chain)

    def _clear(self, chain: Chain) -> None:
        """Removes the records of a chain without a head; records that cannot be removed are left to `purge`."""
        with suppress(S3NotifyError):
            rest = self._records.scan(self._partition, prefix=chain.key(""), keys_only=lambda _: True)
            self._remove(list(rest))

    def _remove(self, records: Sequence[Record]) -> None:
        """Removes these records. Records that cannot be removed now are left to the next `purge`."""

        def remove(record: Record) -> None:
            with suppress(S3NotifyError):
                self._records.remove(self._partition, record.key, expected=record.version)

        if self._parallelism == 1 or len(records) < 2:
            for record in records:
                remove(record)
            return
        with ThreadPoolExecutor(min(self._parallelism, len(records))) as pool:
            list(pool.map(remove, records))

    def _groups(self, keys_only: Callable[[str], bool]) -> Iterator[tuple[str, Record | None, list[Record]]]:
        """For each tag, its head (or None) and its other records. Cost: 1 scan, without values of `keys_only` keys."""
        records = self._records.scan(self._partition, keys_only=keys_only)
        for tag, group in groupby(records, key=lambda record: tag_of(record.key)):
            found = list(group)
            head = next((record for record in found if is_head(record.key)), None)
            yield tag, head, [record for record in found if not is_head(record.key)]
