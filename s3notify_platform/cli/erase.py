"""`s3notify erase KEY`: remove all that is held of an object, for good."""

from urllib.parse import quote, quote_plus

import click

from s3notify_platform.cli.common import SourcePlace, json_option, key_with, yes_option
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.tasks import carry_out, dry_run_option


@command(short_help="Remove all that is held of an object, for good.")
@click.argument("key")
@key_with("prefix")
@yes_option
@dry_run_option
@json_option
def erase(key: str, *, place: SourcePlace, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove all that the platform holds of the object KEY, which is no longer in the bucket, for good.

    Its rows leave the table and the slot assets, their history and files, and the quarantine; its entries and dead
    letters leave the queue, with messages in `inlet poison` that name it. Versions that held it can no longer be read,
    nor those before them. What an aggregate made of the object's slot is made again by the next batch.

    Not removed: names of columns, what others have made of it or received, Dagster's and other logs, and old versions
    of the platform's objects if its bucket is versioned: let a lifecycle rule expire these.

    Refused while the object is in the bucket. Safe to repeat. A run of before may still write a file of it, and commits
    none: so it says when to repeat it once. Exit code 1 if something is left now, with the reason.
    """
    from s3notify_platform.channels.inlets.poison import PoisonStore
    from s3notify_platform.maintenance.erasure import EraseObject

    place.committing()  # refused without a table
    source = place.source()

    def discard() -> int:
        poison = PoisonStore(place.queue())
        names = [text.encode() for text in (key, quote(key), quote_plus(key), quote_plus(key, safe="/"))]
        kept = frozenset(m.id for m in poison.all() if any(name in m.body for name in names))
        return poison.discard(kept) if kept else 0

    carry_out(EraseObject(source=source, key=key, discard=discard), dry_run=dry_run, as_json=as_json, yes=yes)
