"""`s3notify status`: the state of all sources on one screen."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from s3notify_platform.cli.common import SOURCE, json_option
from s3notify_platform.cli.configured import command, configured, dagster_instance, find_code
from s3notify_platform.cli.ending import stop_on_signals
from s3notify_platform.cli.printing import in_one_line, print_json, printable, shown
from s3notify_platform.cli.setting_options import setting_option, settings_options
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.texts import counted

if TYPE_CHECKING:
    import dagster as dg
    from rich.console import RenderableType

    from s3notify_platform.engine.batch.batches import SensorState
    from s3notify_platform.explain.slot_map import SlotMap
    from s3notify_platform.explain.source_status import SourceLook, SourceStatus
    from s3notify_platform.protocols.notification_queue import TopicStats
    from s3notify_platform.source.source import Source

REASONS_SHOWN = 5
COLUMNS: Final = ("Rows", "Waiting", "In\nflight", "Last\ncommit", "Lag", "Rejects", "Failing")
"""The columns after the source's name. Their cells are short, so that no cell is broken on a terminal with a width of
80 characters.
"""


@command(short_help="Show the state of the sources.")
@click.argument("names", metavar="[NAME]...", nargs=-1)
@setting_option("bucket", required=False, default=None, rare=True)
@settings_options(*SOURCE[1:], "prefix")
@click.option("--watch", is_flag=True, help="Refresh the screen until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.5),
    metavar="SECONDS",
    default=2.0,
    show_default=True,
    help="Time between two refreshes, with --watch.",
)
@json_option
def status(names: tuple[str, ...], *, watch: bool, every: float, as_json: bool, **place: Any) -> None:
    """Show the state of the sources NAME; default: all sources in the YAML.

    The columns are rows, changes that wait, batches in flight, the last commit, its lag (the time from a change's
    signal to the commit), rejected records, and failures. For one source, a slot map is shown. A cell's colour is the
    age of the slot's last commit, and the cell's height is the slot's number of rows. Rows of stale slots were made by
    other code than the YAML names now; `s3notify backfill NAME --stale` reads them again. Retried slots and a pause are
    known only if DAGSTER_HOME names the folder of the sensor's Dagster instance. Reads only. Exit code 1 if a source
    could not be read.
    """
    from rich.console import Console, Group
    from rich.live import Live

    console = Console()
    screen = partial(_screen, coloured=console.color_system is not None and not console.no_color)
    with dagster_instance() as instance:
        looks = _looks(names, place, _Sensors(instance))
        found = [look.look() for look in looks]
        if as_json:
            print_json([one.document() for one in found])
        elif watch:
            with (
                stop_on_signals("status") as stop,
                Live(Group(*screen(found)), console=console, screen=True) as live,
            ):
                while not stop.wait(every):
                    found = [look.look() for look in looks]
                    live.update(Group(*screen(found)), refresh=True)
        else:
            console.print(Group(*screen(found)))
    if any(one.error for one in found):
        raise click.exceptions.Exit(1)


def _looks(names: Sequence[str], place: dict[str, Any], sensors: "_Sensors") -> "list[SourceLook]":
    from s3notify_platform.explain.source_status import SourceLook
    from s3notify_platform.source.build import build

    context = click.get_current_context()
    given = {
        key: place[key] for key in place if context.get_parameter_source(key) is ParameterSource.COMMANDLINE
    }
    sources = {source.name: source for source in configured()}
    codes = {}
    if sources:
        find_code()
        codes = {name: source.code_versions for name, source in sources.items()}
        if unknown := sorted({*names} - sources.keys()):
            raise UsageError(f"no source {unknown[0]!r}; the YAML has: {', '.join(sources)}")
        found = [sources[name].source(**given) for name in names or sources]
    elif place["bucket"] and names:
        found = [build({**given, "name": name}) for name in names]
        for source in found:
            source.location.check_exists()
    else:
        raise click.UsageError("give NAME and --bucket, or run the command where defs/SOURCE/defs.yaml is")
    return [
        SourceLook(
            source,
            partial(sensors.state, source),
            codes=codes.get(source.name, {}),
            paused=partial(sensors.is_paused, source),
        )
        for source in found
    ]


@dataclass(frozen=True)
class _Sensors:
    """The sensors of sources in a Dagster instance."""

    instance: "dg.DagsterInstance | None"

    def state(self, source: "Source") -> "SensorState | None":
        """The cursor of the source's sensor; None without an instance."""
        if self.instance is None:
            return None
        from s3notify_platform.orchestration.sensor_views import sensor_state

        return sensor_state(self.instance, source.name, source.location.records())

    def is_paused(self, source: "Source") -> bool | None:
        """True if the source's sensor is turned off; None (unknown) without an instance that has the sensor."""
        if self.instance is None:
            return None
        from s3notify_platform.orchestration.pausing import is_paused

        return is_paused(self.instance, source.name)


def _screen(found: "Sequence[SourceStatus]", *, coloured: bool) -> "Iterator[RenderableType]":
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    columns = (Column(name, no_wrap=True, justify="right") for name in COLUMNS)
    name = Column("Source", overflow="fold")
    table = Table(name, *columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for one in found:
        table.add_row(*(Text(printable(cell)) for cell in _cells(one)))
    yield table
    for one in found:
        yield from (Text(line) for line in _details(one, alone=len(found) == 1))
    if unknown := [one.name for one in found if one.sensor_unknown]:
        yield Text(
            f"{', '.join(unknown)}: it is unknown which slots fail, and if the sensor is off: set DAGSTER_HOME to the "
            "folder of the Dagster instance"
        )
    own = {one.name for one in found}
    # Sources of one bucket share their queue.
    if others := {topic.topic: topic for one in found for topic in one.topics if topic.topic not in own}:
        yield Text("\nTopics: " + "; ".join(map(_topic, others.values())))
    if len(found) == 1 and (slots := found[0].map) is not None and not found[0].error:
        yield Text()
        yield from _map(slots, coloured=coloured)


def _map(slots: "SlotMap", *, coloured: bool) -> "Iterator[RenderableType]":
    from rich.text import Text

    from s3notify_platform.explain.slot_map import COLOURS

    for line in slots.lines():
        yield Text.assemble(*line)
    yield Text(slots.legend())
    if coloured:
        states = slots.states()
        yield Text.assemble(*((f"■ {name} ", colour) for name, colour in COLOURS.items() if name in states))


def _cells(one: "SourceStatus") -> Sequence[str]:
    if one.error:
        return (one.name, "-", "-", "-", "-", "-", "-", "error")
    waiting = [f"{one.queue.depth:,}"] if one.queue is not None and one.queue.depth else []
    waiting += [counted(one.rescan, "slot")] if one.rescan else []
    failing = [counted(len(one.failures), "slot")] if one.failures else []
    failing += [counted(one.failing_objects, "object")] if one.failing_objects else []
    failing += ["unknown"] if one.sensor_unknown else []
    lag = one.last.latency_seconds if one.last else None
    return (
        one.name,
        f"{one.rows:,}",
        "\n".join(waiting) or "-",
        f"{len(one.batches)}" if one.batches else "-",
        f"{_age(one.last.age_seconds)} ago" if one.last else "never",
        "-" if lag is None else _age(lag) if lag >= 60 else f"{lag:.1f} s",
        f"{one.rejects:,}" if one.rejects else "-",
        "\n".join(failing) or "-",
    )


def _details(one: "SourceStatus", *, alone: bool) -> Iterator[str]:
    if one.error:
        yield f"{one.name} cannot be read: {in_one_line(one.error)}"
        return
    if one.paused:
        yield f"{one.name} is paused: no batch begins until `s3notify resume {one.name}`"
    if alone:
        slots = f"{one.committed_slots} of {counted(one.slots, 'slot')}"
        yield f"{shown(one.place)}; {slots} committed; table {one.table or 'not begun'}"
    yield from _running(one)
    for what in (what for batch in one.batches for what in batch.doing):
        yield f"{one.name}, now: {what}"
    warnings = [each.warning for each in (one.schema, one.rewrites) if each is not None]
    yield from (f"{one.name}: {warning}" for warning in warnings if warning)
    if one.without_records:
        yield (
            f"{one.name}: {counted(one.without_records, 'object')} gave neither rows nor rejected records: "
            "see s3notify explain KEY"
        )
    for each in one.following:
        behind = f", {counted(each.behind, 'version')} behind" if each.behind else ""
        as_of = f"as of version {each.version}" if each.version >= 0 else "not made yet"
        yield f"{each.asset}: {each.rows:,} rows, {as_of}{behind}"
    yield from _old_slots(one)
    yield from _failing(one)


def _old_slots(one: "SourceStatus") -> Iterator[str]:
    """Lines about slots whose rows have to be made again."""
    for table, stale in one.stale.items():
        if stale:
            command = f"s3notify backfill {one.name} --stale"
            how = command if table == one.name else f"job {one.name}_ingest, choose: stale"
            are = f"{counted(stale, 'slot')} of {table} {'is' if stale == 1 else 'are'}"
            yield f"{one.name}: {are} stale, made by other code: {how}"
    for table, count in one.behind.items():
        if count:
            yield (
                f"{one.name}: {counted(count, 'slot')} of {table} {'lacks' if count == 1 else 'lack'} the newest "
                f"rows: the sensor {one.name}_slot_automation requests failed slots again every ten minutes, and the "
                "failed run names the reason"
            )


def _running(one: "SourceStatus") -> Iterator[str]:
    """Lines about the changes that wait, and about the batches in flight."""
    waiting = []
    if one.queue is not None and one.queue.depth:
        oldest = f", the oldest for {_age(age)}" if (age := one.queue.oldest_age_seconds) else ""
        waiting.append(f"{counted(one.queue.depth, 'change')}{oldest}")
    if one.rescan:
        waiting.append(f"{counted(one.rescan, 'slot')} to list")
    if waiting:
        yield f"{one.name}, waiting: {'; '.join(waiting)}"
    for batch in one.batches:
        slots = "all slots" if batch.slots is None else counted(batch.slots, "slot")
        done = f"{batch.acked:,} of {batch.children:,} done"
        yield f"{one.name}, in flight: {slots}, {done}, for {_age(batch.age_seconds)}"


def _failing(one: "SourceStatus") -> Iterator[str]:
    reasons: dict[str, list[int]] = {}
    for failure in one.failures or ():
        reasons.setdefault(in_one_line(failure.reason), []).append(failure.slot)
    for reason, slots in [*reasons.items()][:REASONS_SHOWN]:
        listed = ",".join(map(str, slots[:10])) + ("…" if len(slots) > 10 else "")
        fail = f"slots {listed} fail" if len(slots) > 1 else f"slot {listed} fails"
        yield f"{one.name}: {fail}: {reason}"


def _topic(one: "TopicStats") -> str:
    oldest = f", oldest {_age(one.oldest_age_seconds)}" if one.oldest_age_seconds else ""
    paused = ", paused" if one.paused else ""
    return f"{shown(one.topic)} {one.depth} waiting{oldest}, {counted(one.dead, 'dead letter')}{paused}"


def _age(seconds: float | None) -> str:
    """A duration in the largest unit that fits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds is not None and seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds or 0:.0f} s"
