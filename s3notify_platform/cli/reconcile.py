"""`s3notify reconcile`: finishes the incomplete work of killed writers."""

from typing import TYPE_CHECKING

from s3notify_platform.cli.common import (
    QueuePlace,
    check_keyspaces,
    keyspace_options,
    metrics_option,
    queue_options,
    warn_without_topic,
)
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.ending import run_in_foreground

if TYPE_CHECKING:
    from s3notify_platform.channels.service import SourceKeyspace


@command(short_help="Finish the work of killed writers.")
@queue_options
@keyspace_options
@metrics_option
def reconcile(
    *,
    place: QueuePlace,
    keyspaces: tuple["SourceKeyspace", ...],
    metrics: str | None,
) -> None:
    """Finish the incomplete work of a bucket's killed writers, until SIGINT or SIGTERM.

    The command resolves reservations of killed writers by HEAD requests, signals entries without a signal, and corrects
    counts of quota after crashes. One process is enough for a bucket; several processes are harmless, and each may be
    killed at any time. Dagster does the same by itself.
    """
    from s3notify_platform.channels.reconcile.reconciler_service import reconciler_over

    check_keyspaces(place, keyspaces, without="changes are resolved in the topics")
    warn_without_topic(place, keyspaces)
    queue = place.queue()
    reconciler = reconciler_over(queue, place.s3(), place.platform(), keyspaces=keyspaces)
    run_in_foreground(reconciler, queue=queue, metrics=metrics)
