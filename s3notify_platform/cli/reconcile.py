"""`s3notify reconcile`: finish what writers left half done when they died."""

from dataclasses import replace

import click

from s3notify_platform.cli.common import QueuePlace, keyspace_options, queue_options, run_in_foreground


@click.command(short_help="Finish what writers left half done.")
@queue_options
@keyspace_options
def reconcile(
    *,
    place: QueuePlace,
    keyspaces: tuple[tuple[str, str], ...],
    source_bucket: str | None,
    slots: int,
) -> None:
    """Finish what writers of a bucket left half done when they died, until SIGINT or SIGTERM.

    Reservations of writers that died are resolved by HEAD, entries that nobody signalled are signalled, and quota
    that crashes left promised is counted again. One of these is enough for a bucket, more do no harm, any may be
    killed.
    """
    from s3notify_platform.channels.reconciler import reconciler_over

    if not keyspaces:
        click.echo("no --keyspace: what is resolved is in the topics, and no source is signalled", err=True)
    platform = place.s3()
    bucket = replace(platform, bucket=source_bucket or place.bucket)
    run_in_foreground(reconciler_over(place.queue(), bucket, platform, keyspaces=keyspaces, slots=slots))
