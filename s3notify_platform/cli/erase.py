"""`s3notify erase KEY`: remove all that is held of an object, for good."""

from datetime import UTC, datetime
from urllib.parse import quote, quote_plus

import click

from s3notify_platform.cli.common import SourcePlace, key_with, yes_option
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import say, shown


@command(short_help="Remove all that is held of an object, for good.")
@click.argument("key")
@key_with("prefix")
@yes_option
def erase(key: str, *, place: SourcePlace, yes: bool) -> None:
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
    from s3notify_platform.maintenance.erasure import check_erasable, time_travel
    from s3notify_platform.maintenance.erasure import erase as erase_object

    location, store, _ = place.committing()
    source = place.source()
    check_erasable(source, key)
    if not yes:
        for table, (first, last) in time_travel(location, store).items():
            name = f"slot asset {table!r}" if table else f"source {place.name!r}"
            say(
                f"{name}: versions {first} to {last} can be read now; those up to the last that held it will not be"
            )
        click.confirm(f"Remove all that source {place.name!r} holds of {shown(key)}, for good?", abort=True)
    done = erase_object(source.settle_commit_mode(store), key)
    poison = PoisonStore(place.queue())
    names = [text.encode() for text in (key, quote(key), quote_plus(key), quote_plus(key, safe="/"))]
    kept = frozenset(m.id for m in poison.all() if any(name in m.body for name in names))
    removed = poison.discard(kept) if kept else 0
    say(
        f"{shown(key)}: slot {done.slot}, {done.of_source.rows} rows and {done.of_source.rejects} rejects of the "
        f"newest version, {done.files} files, {done.entries} entries and {removed} messages removed"
    )
    if done.of_source.begins >= 0:
        say(f"the table's history begins with version {done.of_source.begins} now")
    for asset in done.cleared:
        say(f"slot asset {asset!r}: slot {done.slot} is empty until the next batch makes it again")
    if done.waiting:
        say(
            f"{done.waiting} entries name it still: in delivery, or of its deletion; repeat this when they are done"
        )
    for batch in done.batches:
        say(
            f"batch {batch} of its slot is open, and may have read it before: repeat this when that has ended"
        )
    if done.left:
        say(f"{done.left} files hold it still, which a run may be writing")
    if done.again_ms:
        when = datetime.fromtimestamp(done.again_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
        say(f"repeat this once after {when} UTC, when no run of before can be at work any more")
    if done.waiting or done.batches or done.left:
        raise click.exceptions.Exit(1)
