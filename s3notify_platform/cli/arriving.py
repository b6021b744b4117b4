"""`s3notify doctor NAME`: whether the bucket's events arrive, and after how many seconds; or which part is missing."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from s3notify_platform.cli.common import SourcePlace
from s3notify_platform.cli.configured import configured
from s3notify_platform.cli.events import inlet_of, prefix_of, site_of, with_accounts
from s3notify_platform.kernel.errors import S3NotifyError, UsageError
from s3notify_platform.kernel.ports import list_all

if TYPE_CHECKING:
    from s3notify_platform.deploy.events.event_setup import EventSetup
    from s3notify_platform.source.source import Source

WAIT_SECONDS: Final = 45.0
"""For the probe's event. Ceph RGW looks for new topics every 30 s."""

SOON_SECONDS: Final = 300.0
"""A signal that moved later is that of a sweep, more likely than of an event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """The answer: whether nothing is wrong, as text, and the seconds that a probe took."""

    fine: bool
    text: str
    seconds: float | None = None


def examine_events(place: SourcePlace) -> Events | None:
    """Whether events arrive at the inlet that the source's YAML has; None: it has none.

    About 30 requests. It takes as long as the event does, `WAIT_SECONDS` at most.
    """
    by_queue = bool(inlet_of(place.name, "sqs"))
    if not by_queue and not inlet_of(place.name, "http"):
        return None
    setup: EventSetup | None = None
    try:
        setup = _setup(place) if by_queue else None
        missing = _missing_on_aws(setup, place) if setup else _unannounced(place)
    except S3NotifyError as error:
        missing, setup = "", None  # these credentials may not look: the probe shows whether it matters
        unseen = f"; the parts were not looked at: {error}"
    else:
        unseen = ""
    if missing:
        again = "" if by_queue else " --receiver URL"
        return Events(fine=False, text=f"{missing}: `s3notify init {place.name} --events{again}` makes it")
    try:
        found = _probed(place, setup)
    except S3NotifyError as error:
        return Events(fine=False, text=f"not known: {error}{unseen}")
    return found if found.fine else Events(fine=False, text=found.text + unseen)


def _setup(place: SourcePlace) -> "EventSetup":
    from s3notify_platform.deploy.events.event_setup import EventSetup

    return EventSetup(site=with_accounts(site_of(place)))


def _missing_on_aws(setup: "EventSetup", place: SourcePlace) -> str:
    """The part that is missing; "" if none is, as far as it can be seen."""
    from s3notify_platform.deploy.events.event_setup import problem_of

    if (there := setup.way_in_place()) is not None:
        return problem_of(setup.parts(there[0]))
    if lacks := setup.queue.lacks():
        return f"{setup.queue.title}: {lacks}"
    return _unannounced(place)


def _unannounced(place: SourcePlace) -> str:
    """That the bucket announces nothing of the source; "" if it does."""
    from s3notify_platform.deploy.events.event_setup import announced
    from s3notify_platform.stores.aws.bucket_notifications import BucketEvents

    prefix = prefix_of(place)
    found, _ = announced(BucketEvents(place.s3()), prefix)
    return (
        f"notification of bucket {place.bucket!r} for keys below {prefix!r}: is missing"
        if found == "nothing"
        else ""
    )


def _probed(place: SourcePlace, setup: "EventSetup | None") -> Events:
    from s3notify_platform.channels.arrival import probe_arrival
    from s3notify_platform.stores.open_store import open_store
    from s3notify_platform.stores.probe import PROBE

    (configured_source,) = (each for each in configured() if each.name == place.name)
    source, waiting = configured_source.source(**place.settings), 0

    def untaken() -> bool:
        nonlocal waiting
        waiting = (setup.queue.waiting() or 0) if setup else 0
        return waiting > 0

    prefix = source.input.prefix
    if source.choice.covers(f"{prefix}{PROBE}"):
        return _newest(source, f"hidden files are read, so none was written to {prefix!r}")
    try:
        seconds = probe_arrival(
            source.location.queue(),
            open_store(source.input.bucket),
            source=place.name,
            bucket_name=place.bucket,
            prefix=prefix,
            wait_seconds=WAIT_SECONDS,
            hopeless=untaken,
        )
    except UsageError:
        return _newest(source, f"these credentials may not write to {prefix!r}")
    if seconds is not None:
        return Events(fine=True, seconds=seconds, text=f"they arrive, {seconds:.1f} s after a write")
    if waiting and setup:
        return Events(
            fine=True,
            text=f"they arrive in queue {setup.site.queue_name!r}, where about {waiting} wait, and no inlet takes them "
            "out: start `s3notify dev`; if it runs, its log says why",
        )
    return Events(
        fine=False,
        text=f"nothing came within {WAIT_SECONDS:.0f} s after a write, though all parts are there: is the inlet "
        "running (`s3notify dev`), and can it be reached?",
    )


def _newest(source: "Source", why: str) -> Events:
    """The answer by the newest object."""
    from s3notify_platform.channels.arrival import newest_arrival
    from s3notify_platform.stores.open_store import open_store

    bucket, location = open_store(source.input.bucket), source.location
    listed = list_all(bucket, source.input.prefix)
    found = newest_arrival(
        open_store(location.platform),
        keyspace_prefix=location.keyspace_prefix,
        slots=location.slots,
        root=location.signals == "root",
        chosen=(meta for meta in listed if source.choice.covers(meta.key)),
    )
    if found is None:
        return Events(fine=True, text=f"all parts are there; {why}, and no object is there to go by")
    if found.seconds is None or found.seconds > SOON_SECONDS:
        late = "not" if found.seconds is None else f"only {found.seconds:.0f} s later"
        return Events(
            fine=True,
            text=f"all parts are there; {why}, and the newest object, {found.key!r}, was {late} announced: write one, "
            "and run this again",
        )
    return Events(
        fine=True,
        text=f"they arrive: the newest object, {found.key!r}, was announced {found.seconds:.0f} s later",
    )
