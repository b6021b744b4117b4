"""`s3notify erase KEY`: delete everything that the platform stores about one object."""

from urllib.parse import quote, quote_plus

import click

from s3notify_platform.cli.common import SourcePlace, json_option, key_with, yes_option
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.tasks import carry_out, dry_run_option


@command(short_help="Delete everything that is stored about one object.")
@click.argument("key")
@key_with("prefix")
@yes_option
@dry_run_option
@json_option
def erase(key: str, *, place: SourcePlace, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete everything that the platform stores about the object KEY, which is no longer in the bucket.

    The command deletes the object's rows from the table, the slot assets, their history, their files and the
    quarantine. The command also deletes the object's entries and dead letters from the queue, and messages in
    `inlet poison` that name the object. Versions with the object, and all versions before them, can no longer be read.
    The next batch recomputes slot assets for the object's slot.

    The command does not delete names of columns, copies that others have made or received, and logs of Dagster and
    others. If the platform's bucket is versioned, a lifecycle rule must expire old versions of its objects.

    The command is refused while the object is in the bucket. Safe to repeat. A run that began before the command may
    still write a file with the object, but cannot commit this file. The command prints a time. Repeat the command after
    this time, so that this file is deleted, too. The platform does not repeat the command by itself.

    Exit code 1 if something of the object was found or is left: repeat the command once after the printed time, which
    --json has as `again_ms`. Exit code 0 if nothing was found. The erasure is complete if the first call ends with exit
    code 0, or if a call after the printed time does.
    """
    from s3notify_platform.channels.inlets.poison import PoisonStore
    from s3notify_platform.maintenance.erasure import EraseObject

    place.committing()  # raises an error if there is no table
    source = place.source()

    def discard() -> int:
        poison = PoisonStore(place.queue())
        names = [text.encode() for text in (key, quote(key), quote_plus(key), quote_plus(key, safe="/"))]
        kept = frozenset(m.id for m in poison.all() if any(name in m.body for name in names))
        return poison.discard(kept) if kept else 0

    carry_out(EraseObject(source=source, key=key, discard=discard), dry_run=dry_run, as_json=as_json, yes=yes)
