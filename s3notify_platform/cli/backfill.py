"""`s3notify backfill NAME`: request that unchanged objects are read again."""

import click

from s3notify_platform.cli.common import SourcePlace, json_option, slots_of, source_options
from s3notify_platform.cli.configured import command, configured, find_code
from s3notify_platform.cli.tasks import carry_out, dry_run_option
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import Slot, slot_from_partition_key


@command(short_help="Read unchanged objects of slots again.")
@source_options
@click.option("--slots", "chosen", callback=slots_of, metavar="SLOTS", help="These slots, like 3,17,40-60.")
@click.option("--all", "everything", is_flag=True, help="All slots.")
@click.option(
    "--stale", is_flag=True, help="Slots whose rows were not made by the code that the YAML names now."
)
@dry_run_option
@json_option
def backfill(
    *,
    place: SourcePlace,
    chosen: frozenset[Slot] | None,
    everything: bool,
    stale: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Request that the next batches read unchanged objects of source NAME again, slot by slot.

    Use this after a change of a transform, a schema or a parser. Readers see the old rows until the new rows are
    committed. Quarantined objects are not read again: use `s3notify quarantine retry`. `s3notify status` prints how
    many slots are stale. Safe to repeat, and to kill at any time.

    \b
    s3notify backfill orders --slots 3,17,40-60 --dry-run
    """  # noqa: D301 - click's own mark
    from s3notify_platform.maintenance.slot_backfill import BackfillSlots
    from s3notify_platform.table.reread import stale_slots

    if (chosen is not None) + everything + stale != 1:
        raise click.UsageError("give one of --slots, --all and --stale")
    code = _code_of(place.name) if stale else ""
    location, store, mode = place.committing()
    slots = [*location.all_slots()]
    if chosen:
        slots = [slot_from_partition_key(str(slot), location.slots) for slot in sorted(chosen)]
    elif stale:
        slots = stale_slots(location.table(store=store), code)
    task = BackfillSlots(location=location, commit=mode, slots=slots)
    carry_out(task, dry_run=dry_run, as_json=as_json)


def _code_of(name: str) -> str:
    """The version of the source's code, from the source's YAML and the code that the YAML names."""
    find_code()
    for source in configured():
        if code := source.code_versions.get(name):
            return code
    raise UsageError(
        f"--stale: the code of source {name!r} is not known here: run the command where its defs/SOURCE/defs.yaml and "
        "the module of its transform are, or declare code_version in the YAML"
    )
