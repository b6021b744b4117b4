"""`s3notify quarantine …`: rejected records and unreadable objects, with reasons, and a way to read them again."""

import base64
from dataclasses import asdict
from textwrap import indent
from typing import TYPE_CHECKING

import click

from s3notify_platform.cli.common import (
    SourcePlace,
    json_option,
    key_options,
    limit_option,
    source_options,
)
from s3notify_platform.cli.configured import group
from s3notify_platform.cli.printing import (
    in_one_line,
    print_json,
    print_table,
    say,
    say_wrapped,
    shown,
    unbroken,
)
from s3notify_platform.cli.tasks import carry_out, dry_run_option
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.slots import SLOT_COUNT, slot_from_partition_key, slot_of
from s3notify_platform.kernel.texts import counted

if TYPE_CHECKING:
    from s3notify_platform.table.quarantined import ReasonCount

RAW_SHOWN = 200
"""At most this many bytes of a rejected record are printed; `--json` prints all stored bytes."""

_slots = click.option(
    "--slot",
    "only",
    type=click.IntRange(0, SLOT_COUNT - 1),
    metavar="SLOT",
    multiple=True,
    help="Only this slot. Repeatable.",
)


@group(short_help="List rejected records and objects; read them again.")
def quarantine() -> None:
    """List and show rejected records and objects that could not be read, and read them again."""


@quarantine.command("list", short_help="Count rejected records and objects by reason, or list their keys.")
@source_options
@_slots
@click.option("--objects", "by_key", is_flag=True, help="Print a line for each object, with its key.")
@limit_option(50, "Print at most this many lines, the largest counts first.")
@json_option
def list_quarantine(
    *, place: SourcePlace, only: tuple[int, ...], by_key: bool, limit: int, as_json: bool
) -> None:
    """Count the quarantined records and objects of source NAME, by slot and reason. With --objects, count them by
    object.

    The command only reads. Cost, with and without --objects: the requests for the newest version. At most 2 GETs for
    each page of object states with a failing or waiting object, and at most 2 GETs for each file with such a page. 1
    GET for each file of rejected records, and some more if the file exceeds 1 MB.
    """
    from s3notify_platform.table.quarantined import reasons_of

    location = place.existing()
    slots = [slot_from_partition_key(str(slot), place.slots) for slot in only] or location.all_slots()
    found = reasons_of(location.table(), slots, by_key=by_key)
    found.sort(key=lambda one: (-max(one.objects, one.records), one.slot, one.reason, one.key))
    totals = {
        "slots": len({one.slot for one in found}),
        "failing_objects": sum(one.objects for one in found if one.kind == "failing"),
        "rejected_records": sum(one.records for one in found),
    }
    if as_json:
        print_json(totals | {"objects" if by_key else "reasons": [asdict(one) for one in found[:limit]]})
        return
    if by_key:
        for one in found[:limit]:
            say_wrapped(_of_object(one))
    else:
        print_table(
            ("Slot", "What", "Objects", "Records", "Waiting", "Reason"),
            (
                (
                    one.slot,
                    one.kind,
                    one.objects,
                    one.records or "",
                    one.waiting or "",
                    in_one_line(one.reason),
                )
                for one in found[:limit]
            ),
        )
    more = f"; {counted(len(found) - limit, 'more line')}: raise --limit" if len(found) > limit else ""
    say_wrapped(
        f"{counted(totals['failing_objects'], 'failing object')}, "
        f"{counted(totals['rejected_records'], 'rejected record')}, in {counted(totals['slots'], 'slot')}{more}"
    )
    if by_key and found:
        say_wrapped(
            f"`s3notify quarantine show KEY --name {place.name}` prints the reasons and the records of an object"
        )
    elif found:
        say_wrapped(f"`s3notify quarantine list {place.name} --objects` prints the keys")


def _of_object(one: "ReasonCount") -> str:
    found = "cannot be read" if one.kind == "failing" else counted(one.records, "rejected record")
    again = ", requested again" if one.waiting else ""
    more = f" (and {counted(one.reasons - 1, 'other reason')})" if one.reasons > 1 else ""
    return f"{unbroken(one.key)}: slot {one.slot}, {found}{again}: {in_one_line(one.reason)}{more}"


@quarantine.command(short_help="Show the rejected records of one object.")
@click.argument("key")
@key_options
@limit_option(20, "Print at most this many rejected records.")
@json_option
def show(key: str, *, place: SourcePlace, limit: int, as_json: bool) -> None:
    """Show why the object KEY is in quarantine: the reason of its failure, and its rejected records with their bytes.

    The command only reads, with a few GETs. Exit code 1 if nothing of the object is in quarantine.
    """
    from s3notify_platform.table.quarantined import key_quarantine

    location = place.existing()
    found = key_quarantine(location.table(), slot_of(key, location.slots), key, limit=limit)
    if found is None:
        raise click.ClickException(
            f"{unbroken(repr(key))}: nothing of this object is in quarantine of source {place.name!r}"
        )
    state, rejects = found.state, found.rejects.to_pylist()
    if as_json:
        document = {
            "key": key,
            "slot": found.slot,
            "etag": state.etag,
            "size": state.size,
            "failing": state.reason or None,
            "trace": state.trace or None,
            "offset": state.offset,
            "rows": state.rows,
            "rejects": state.rejects,
            "waiting": found.waiting,
            "records": [
                {
                    "offset": row["_offset"],
                    "reason": row["reason"],
                    "raw_base64": base64.b64encode(row["raw"] or b"").decode(),
                }
                for row in rejects
            ],
        }
        print_json(document)
        return
    say_wrapped(f"{unbroken(key)}: slot {found.slot}, ETag {state.etag}, {counted(state.size, 'byte')}")
    if state.reason:
        read = f", {state.rows} rows up to {state.offset} are committed" if state.rows else ""
        say_wrapped(f"fails{read}: {in_one_line(state.reason)}")
    if state.trace:
        say(indent(state.trace, "    "))
    if found.waiting:
        say_wrapped("requested again: the next batch of the slot reads the object")
    for row in rejects:
        raw = row["raw"] or b""
        cut = f"… ({len(raw)} bytes)" if len(raw) > RAW_SHOWN else ""
        say_wrapped(f"at {row['_offset']}: {in_one_line(row['reason'] or '')}")
        say(f"    {shown(raw[:RAW_SHOWN].decode('utf-8', 'backslashreplace'))}{cut}")
    if state.rejects > len(rejects):
        say_wrapped(f"{counted(state.rejects - len(rejects), 'more rejected record')}: raise --limit")


@quarantine.command(short_help="Read quarantined records and objects again.")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@key_options
@_slots
@click.option("--all", "everything", is_flag=True, help="All slots.")
@click.option("--reason", default="", help="Only records and objects with a reason that contains this text.")
@dry_run_option
@json_option
def retry(
    *,
    place: SourcePlace,
    keys: tuple[str, ...],
    only: tuple[int, ...],
    everything: bool,
    reason: str,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Request that the next batch reads quarantined objects again: the objects KEY, all objects of --slot, or all
    objects of the source (--all).

    The commit of an object's rows also removes the object from quarantine. An object that fails again stays, with the
    new reason. Safe to repeat. Exit code 1 if none of the objects KEY is in quarantine, or if some objects are not
    requested yet.
    """
    from s3notify_platform.maintenance.quarantine_retry import RetryQuarantined

    source = place.source()
    try:
        task = RetryQuarantined(
            location=source.location,
            commit=source.commit,
            keys=keys,
            slots=only,
            everything=everything,
            reason=reason,
        )
    except UsageError as error:
        raise click.UsageError("give exactly one of KEY, --slot and --all") from error
    carry_out(task, dry_run=dry_run, as_json=as_json)
