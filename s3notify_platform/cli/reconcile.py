"""`s3notify reconcile`: tell consumers what writers left behind when they died."""

from dataclasses import replace

import click

from s3notify_platform.cli.common import QueuePlace, queue_options, run_in_foreground
from s3notify_platform.slots import SLOT_COUNT


@click.command()
@queue_options
@click.option(
    "--keyspace",
    "keyspaces",
    nargs=2,
    multiple=True,
    metavar="SIGNALS KEYS",
    help="A source's prefix of signals, and its prefix of keys; once for each source. "
    "Like: --keyspace _s3notify/orders/keyspace/ raw/orders/",
)
@click.option("--source-bucket", help="Bucket that the objects are in, if another than --bucket.")
@click.option(
    "--slots",
    type=click.IntRange(1, SLOT_COUNT),
    default=SLOT_COUNT,
    help="Of the keyspaces; all by default.",
)
def reconcile(
    *,
    place: QueuePlace,
    keyspaces: tuple[tuple[str, str], ...],
    source_bucket: str | None,
    slots: int,
) -> None:
    """Tend the queue of a bucket, until SIGINT or SIGTERM.

    Reservations of writers that died are resolved by HEAD, entries that nobody signalled are signalled, room lost to
    crashes is counted again. One of these is enough for a bucket, more do no harm, any may be killed.
    """
    from s3notify_platform.channels.reconciler import reconciler_over

    if not keyspaces:
        click.echo("no --keyspace: what is resolved is in the topics, and no source is signalled", err=True)
    platform = place.s3()
    bucket = replace(platform, bucket=source_bucket or place.bucket)
    run_in_foreground(reconciler_over(place.queue(), bucket, platform, keyspaces=keyspaces, slots=slots))
