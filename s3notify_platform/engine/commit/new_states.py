"""Settles a slot of a round: converts the outcomes of the slot's objects to the states that the slot commits. Pure.

A read may end early because of an error, or because a big object takes several rounds. The rows that were read so far
are committed, and the next read continues after these rows. An object whose read fails is left out, and its slot is
requested again. On the slot's last attempt, the object goes to quarantine, and the rows of the object's earlier version
are removed. An outage never counts as a failure of an object.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from s3notify_platform.engine.values.object_read import Outcome
from s3notify_platform.engine.values.results import SlotResult
from s3notify_platform.engine.values.slot_plan import SlotPlan
from s3notify_platform.formats.rescue import added
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.limits import MAX_FAILING_OBJECTS, MAX_REASON, MAX_UNFORESEEN
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.round import SlotRound

TRACES_MAX: Final = 5
"""Maximum number of tracebacks that a slot reports, not counting the tracebacks of objects in quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """The facts that hold for all slots of a round.

    `label`: the label of the round's rows. `last_attempt`: slots whose objects go to quarantine if their read fails.
    `complete`: slots whose plan contains every changed and removed object of the slot. `failing`: for each slot, the
    number of its objects in quarantine. `evolving`: true if the schema can still be widened. Then a slot with fields
    that are not in the schema waits for the wider schema.
    """

    label: int
    on_delete: Literal["withdraw", "keep", "keep_expired"] = "withdraw"
    code_version: str = ""
    last_attempt: frozenset[Slot] = frozenset()
    complete: frozenset[Slot] = frozenset()
    signals: Mapping[Slot, str] = field(default_factory=dict)
    failing: Mapping[Slot, int] = field(default_factory=dict)
    evolving: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The result of a slot, and the changes to commit (None: no changes).

    `new_fields`: fields that the schema must get before the slot can be committed.
    """

    round: SlotRound | None
    result: SlotResult
    new_fields: tuple[str, ...] = ()


def settled(planned: SlotPlan, outcomes: Mapping[str, Outcome], facts: RoundFacts) -> Settled:
    """Settles a slot. `outcomes`: the joined outcome of each object that had to be read (`object_read.joined`).

    Raises `CorruptError` if a read continued from an offset, but the committed state belongs to another object version.
    """
    slot, known = planned.slot, planned.before
    read = {key: outcome for key, outcome in outcomes.items() if outcome.status == "ok"}
    unknown = sorted({fields for outcome in read.values() for fields in outcome.new_fields})
    if facts.evolving and unknown:
        waits = SlotResult(slot=slot, status="unchanged", complete=False)
        return Settled(round=None, result=waits, new_fields=tuple(unknown))
    gone, expired = _left(planned, outcomes, facts)
    failed = {key: outcome.reason for key, outcome in outcomes.items() if outcome.status == "failed"}
    failed |= {key: outcome.failed for key, outcome in read.items() if outcome.failed}
    unavailable = {key: reason for key, reason in failed.items() if outcomes[key].outage}
    failed = {key: reason for key, reason in failed.items() if key not in unavailable}
    traces = {key: outcomes[key].trace for key in sorted(failed) if outcomes[key].trace}
    quarantined = _quarantined(planned, failed, traces.keys(), facts)
    states = [_read(slot, key, outcome, known.get(key), facts) for key, outcome in read.items()]
    states += [ObjectState(key=key, etag="", size=0, gone=True) for key in gone]
    states += [
        replace(known[key], expired=True, reach_end=True, reason="", trace="", again=False) for key in expired
    ]
    states += [_unread(key, outcomes[key], known.get(key)) for key in quarantined if key not in read]
    changes = {
        state.key: replace(state, reason=quarantined[state.key], trace=traces.get(state.key, ""))
        if state.key in quarantined
        else state
        for state in states
    }
    result = SlotResult(
        slot=slot,
        status="committed",
        objects=len(read),
        rows=sum(outcome.rows for outcome in read.values()),
        rejects=sum(outcome.rejects for outcome in read.values()),
        gone=len(gone),
        superseded=sum(outcome.status == "superseded" for outcome in outcomes.values()),
        bytes=sum(outcome.bytes for outcome in read.values()),
        without_records=sum(
            changes[key].without_records and not outcome.rows for key, outcome in read.items()
        ),
        complete=planned.changes.complete
        and all(outcome.reach_end or outcome.failed for outcome in read.values()),
        failed_objects={key: reason for key, reason in failed.items() if key not in quarantined},
        unavailable=unavailable,
        quarantined=quarantined,
        traces={key: traces[key] for key in {*[*traces][:TRACES_MAX], *(traces.keys() & quarantined)}},
        unnamed=added(outcome.unnamed for outcome in read.values()),
        mismatches=added(outcome.mismatches for outcome in read.values()),
        broken=added(outcome.broken for outcome in read.values()),
    )
    if not changes:
        return Settled(round=None, result=result)
    done = slot in facts.complete and all(
        key in quarantined or (outcome.status in ("ok", "deleted") and not outcome.failed)
        for key, outcome in outcomes.items()
    )
    made = any(state.until == facts.label and not state.gone for state in changes.values())
    return Settled(
        round=SlotRound(
            changes=changes,
            before={key: known[key] for key in changes if key in known},
            label=facts.label,
            signal=facts.signals.get(slot),
            code_version=facts.code_version if made else None,
            backfill=0 if done else None,
            transformed=any(outcome.stored is not None for outcome in read.values()),
        ),
        result=result,
    )


def _left(planned: SlotPlan, outcomes: Mapping[str, Outcome], facts: RoundFacts) -> tuple[set[str], set[str]]:
    """Returns the keys of objects that no longer exist, as two sets: keys whose rows are removed, and keys whose rows
    stay (`on_delete`).
    """
    known, changes = planned.before, planned.changes
    expired = {key for key in changes.expired.intersection(changes.gone) if key in known and known[key].rows}
    gone = {key for key in changes.gone if key in known} - expired
    deleted = {key for key, outcome in outcomes.items() if outcome.status == "deleted" and key in known}
    match facts.on_delete:
        case "keep":
            # A deleted object cannot be read again. Its state is marked as expired, so that no further read is
            # requested.
            again = {key for key in deleted if outcomes[key].etag == known[key].etag}
            expired |= {key for key in again if known[key].rows and not known[key].expired}
        case "keep_expired":
            pass  # a later entry or listing will show whether the object expired
        case "withdraw":
            gone |= deleted
    return gone | {key for key in deleted if not known[key].rows}, expired


def _quarantined(
    planned: SlotPlan, failed: Mapping[str, str], unforeseen: Collection[str], facts: RoundFacts
) -> dict[str, str]:
    """Returns the failed objects that go to quarantine, with their reasons."""
    if planned.slot not in facts.last_attempt:
        return {}
    there = sum(state.failing for key, state in planned.before.items() if key in failed)
    room = max(0, MAX_FAILING_OBJECTS - (facts.failing.get(planned.slot, 0) - there))
    beyond = sorted(unforeseen)[MAX_UNFORESEEN:]
    wanted = sorted(failed.keys() - beyond)
    return {key: (failed[key] or "it could not be read")[:MAX_REASON] for key in wanted[:room]}


def _read(
    slot: Slot, key: str, outcome: Outcome, known: ObjectState | None, facts: RoundFacts
) -> ObjectState:
    """Returns the state of an object that was read.

    If the read continued earlier reads, the state also counts the rows of the earlier reads.
    """
    begun = known if outcome.start else None
    if outcome.start and (begun is None or begun.etag != outcome.etag):
        raise CorruptError(
            f"an object of slot {slot} was read from offset {outcome.start}, but this version has no committed state"
        )
    return ObjectState(
        key=key,
        etag=outcome.etag,
        size=outcome.size,
        offset=outcome.offset,
        reach_end=outcome.reach_end,
        by_record=outcome.by_record,
        rows=(outcome.rows if outcome.stored is None else outcome.stored) + (begun.rows if begun else 0),
        rejects=outcome.rejects + (begun.rejects if begun else 0),
        since=begun.since if begun else facts.label,
        until=facts.label,
    )


def _unread(key: str, outcome: Outcome, known: ObjectState | None) -> ObjectState:
    """Returns the state of an object whose read failed: the committed state if this state belongs to the same object
    version, else an empty state.
    """
    if known is not None and known.etag == outcome.etag:
        return replace(known, expired=False, again=False)
    return ObjectState(key=key, etag=outcome.etag, size=outcome.size, reach_end=False)
