"""`s3notify backfill NAME`: have unchanged objects read again."""

from dataclasses import asdict

import click

from s3notify_platform.cli.common import SourcePlace, dry_run_option, json_option, slots_of, source_options
from s3notify_platform.cli.configured import command, configured, find_code
from s3notify_platform.cli.printing import print_json, say
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import Slot, slot_from_partition_key


@command(short_help="Have unchanged slots read again.")
@source_options
@click.option("--slots", "chosen", callback=slots_of, help="These slots, like 3,17,40-60.")
@click.option("--all", "everything", is_flag=True, help="All slots.")
@click.option(
    "--stale", is_flag=True, help="The slots that another transform has made than the YAML names now."
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
    """Have the next batches read all objects of slots of source NAME again, although they have not changed.

    Use it after a change of a transform, a schema or a parser. The versions that hold new rows replace the old
    ones; until then readers see the old ones. Objects that could not be read stay in quarantine: see
    `s3notify quarantine retry`. (With a changed `code_version`, slots are also read again as they change.) `s3notify
    status` says how many slots are stale. Safe to repeat, and to kill at any time.

    \b
    s3notify backfill orders --slots 3,17,40-60 --bucket acme-landing --dry-run
    """  # noqa: D301 - click's own mark
    from s3notify_platform.table.reread import backfill as read_again
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
    location.open_table(store)  # refused as a run would be
    if not dry_run:
        mode = location.settle_commit_mode(mode, store)
    table = location.table(store=store, commit=mode)
    found = read_again(table, slots, location.slot_signals(store), dry_run=dry_run)
    if as_json:
        print_json(asdict(found) | {"dry_run": dry_run})
        return
    done = "would be" if dry_run else "are"
    say(f"{found.objects} objects with {found.rows} rows, in {len(found.slots)} slots, {done} read again")


def _code_of(name: str) -> str:
    """The version of the source's code, as its YAML and what this names have it."""
    find_code()
    for source in configured():
        if code := source.code_versions.get(name):
            return code
    raise UsageError(
        f"--stale: the code of source {name!r} is not known here: run it where its defs/SOURCE/defs.yaml is, and the "
        "module of its transform, or declare code_version there"
    )
