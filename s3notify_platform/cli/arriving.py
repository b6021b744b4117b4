"""`s3notify doctor NAME`: checks that the bucket's events arrive, and after how many seconds."""

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from s3notify_platform.cli.common import SourcePlace
from s3notify_platform.cli.configured import configured, receiver_of
from s3notify_platform.cli.events import prefix_of, site_of, with_accounts
from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.local.project import dagster_command

if TYPE_CHECKING:
    from s3notify_platform.deploy.events.event_setup import EventSetup
    from s3notify_platform.source.source import Source

PROBE_SECONDS: Final = 45.0
"""The time to wait for the event of the probe. Ceph RGW looks for new topics every 30 s."""

SOON_SECONDS: Final = 300.0
"""If the signal changes this long after the write, or later, a sweep has probably changed it, and not an event."""

LOOKED_AT_MAX: Final = 10_000
"""The newest object is looked for only below a prefix with at most this many objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The result of `examine_events`. `seconds`: the time between the probe and its event, if measured."""

    fine: bool
    text: str
    seconds: float | None = None


def examine_events(place: SourcePlace) -> Events | None:
    """Checks that events arrive at the inlet in the source's YAML, or at an inlet that another source of the project
    shares with the source. None if there is no inlet, or if a shared inlet gets no events of this source.

    For the inlets `sqs` and `http`: waits for the event of a probe, at most `PROBE_SECONDS`. Cost: about 30 requests.
    For any other inlet, examines the newest object instead, because the inlet's service may not get the bucket's
    events.
    """
    source = next((each for each in configured() if each.name == place.name), None)
    receiver = receiver_of(source) if source else None
    if not source or not receiver:
        return None
    inlets, whose = receiver.inlets, "" if receiver is source else f" of source {receiver.name!r}"
    by_queue, by_others = "sqs" in inlets, {"sqs", "http"}.isdisjoint(inlets)
    setup: EventSetup | None = None
    missing, parts = "", f"the YAML{whose} has {' and '.join(f'inlet {name!r}' for name in inlets)}"
    if not by_others:
        try:
            setup = _setup(place) if by_queue and receiver is source else None
            missing = _missing_on_aws(setup, place) if setup else _unannounced(place)
            parts = "all parts are there"
        except S3NotifyError as error:
            setup = None  # the parts cannot be examined: the probe decides
            parts = f"the parts were not checked: {error}"
    if missing and receiver is not source:
        return None  # a source that only shares another source's inlet need not have events
    if missing:
        again = "" if by_queue else " --receiver URL"
        return Events(fine=False, text=f"{missing}: `s3notify init {place.name} --events{again}` makes it")
    try:
        built = source.source(**place.settings)
        if by_others:
            why = "no probe was written, since its service may not get the bucket's events"
            return _newest(built, why, parts)
        return _probed(built, place, setup, parts)
    except S3NotifyError as error:
        return Events(fine=False, text=f"unknown: {error}; {parts}")


def _setup(place: SourcePlace) -> "EventSetup":
    from s3notify_platform.deploy.events.event_setup import EventSetup

    return EventSetup(site=with_accounts(site_of(place)))


def _missing_on_aws(setup: "EventSetup", place: SourcePlace) -> str:
    """The part of the setup that is missing; "" if no part is known to be missing."""
    from s3notify_platform.deploy.events.event_setup import problem_of

    if (there := setup.way_in_place()) is not None:
        return problem_of(setup.parts(there[0]))
    if lacks := setup.queue.lacks():
        return f"{setup.queue.title}: {lacks}"
    return _unannounced(place)


def _unannounced(place: SourcePlace) -> str:
    """A message if the bucket announces no change of the source; "" otherwise."""
    from s3notify_platform.deploy.events.event_setup import announced
    from s3notify_platform.stores.aws.bucket_notifications import BucketEvents

    prefix = prefix_of(place)
    found, _ = announced(BucketEvents(place.s3()), prefix)
    return (
        f"the notification of bucket {place.bucket!r} for keys below {prefix!r} is missing"
        if found == "nothing"
        else ""
    )


def _probed(source: "Source", place: SourcePlace, setup: "EventSetup | None", parts: str) -> Events:
    from s3notify_platform.channels.arrival import probe_arrival
    from s3notify_platform.stores.open_store import open_store
    from s3notify_platform.stores.probe import PROBE

    waiting = 0

    def untaken() -> bool:
        nonlocal waiting
        waiting = (setup.queue.waiting() or 0) if setup else 0
        return waiting > 0

    prefix = source.input.prefix
    if not source.choice.why_not(f"{prefix}{PROBE}"):
        return _newest(
            source, f"no probe was written to {prefix!r}, since the source reads hidden files", parts
        )
    try:
        seconds = probe_arrival(
            source.location.queue(),
            open_store(source.input.bucket),
            source=place.name,
            bucket_name=place.bucket,
            prefix=prefix,
            wait_seconds=PROBE_SECONDS,
            hopeless=untaken,
        )
    except UsageError:
        why = f"no probe was written, since these credentials may not write to {prefix!r}"
        return _newest(source, why, parts)
    if seconds is not None:
        return Events(fine=True, seconds=seconds, text=f"they arrive, {seconds:.1f} s after a write")
    if waiting and setup:
        return Events(
            fine=True,
            text=f"they arrive in queue {setup.site.queue_name!r}, where about {waiting} wait, and no inlet "
            f"receives them: start {dagster_command()}; if it runs, its log has the reason",
        )
    return Events(
        fine=False,
        text=f"no event arrived within {PROBE_SECONDS:.0f} s after a write; {parts}: check that the inlet runs, "
        f"for example by {dagster_command()}, and that the store can reach it",
    )


def _newest(source: "Source", why: str, parts: str) -> Events:
    """The result without a probe, from the newest object. `why`: the reason why there was no probe. `parts`: the
    findings about the parts of the setup.
    """
    from s3notify_platform.channels.arrival import newest_arrival
    from s3notify_platform.stores.open_store import open_store

    location, prefix = source.location, source.input.prefix
    listed = [*islice(list_all(open_store(source.input.bucket), prefix), LOOKED_AT_MAX + 1)]
    if len(listed) > LOOKED_AT_MAX:  # the newest object may be among the objects that are not listed
        return Events(
            fine=True,
            text=f"{parts}; {why}, and more than {LOOKED_AT_MAX:,} objects are below {prefix!r}, too many to look for "
            "the newest one: write an object, and `s3notify explain KEY` shows whether it was announced",
        )
    found = newest_arrival(
        open_store(location.platform),
        keyspace_prefix=location.keyspace_prefix,
        slots=location.slots,
        root=location.signals == "root",
        chosen=(meta for meta in listed if not source.choice.why_not(meta.key, meta)),
    )
    if found is None:
        return Events(fine=True, text=f"{parts}; {why}, and the bucket has no object to judge by")
    if found.seconds is None or found.seconds > SOON_SECONDS:
        late = (
            "was not announced"
            if found.seconds is None
            else f"was announced only after {found.seconds:.0f} s"
        )
        return Events(
            fine=False,
            text=f"{parts}; {why}, and the newest object, {found.key!r}, {late}: write an object, and run this "
            "command again",
        )
    return Events(
        fine=True,
        text=f"they arrive: the newest object, {found.key!r}, was announced after {found.seconds:.0f} s",
    )
