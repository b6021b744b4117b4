"""`s3notify reconcile`: finish the work that killed writers left incomplete."""

from s3notify_platform.cli.common import (
    QueuePlace,
    check_keyspaces,
    keyspace_options,
    metrics_option,
    queue_options,
)
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.ending import run_in_foreground


@command(short_help="Finish the work of killed writers.")
@queue_options
@keyspace_options
@metrics_option
def reconcile(
    *,
    place: QueuePlace,
    keyspaces: tuple[tuple[str, str], ...],
    slots: int,
    metrics: str | None,
) -> None:
    """Finish the work that killed writers of a bucket left incomplete, until SIGINT or SIGTERM.

    Reservations of killed writers are resolved by HEAD, entries without a signal are signalled, and quota that
    crashes left reserved is counted again. One such process is enough for a bucket; several are harmless, and any of
    them may be killed.
    """
    from s3notify_platform.channels.reconcile.reconciler_service import reconciler_over

    check_keyspaces(place, keyspaces, without="changes are resolved in the topics")
    queue = place.queue()
    reconciler = reconciler_over(queue, place.s3(), place.platform(), keyspaces=keyspaces, slots=slots)
    run_in_foreground(reconciler, queue=queue, metrics=metrics)
