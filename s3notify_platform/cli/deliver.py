"""`s3notify deliver`: push the topics of a bucket's queue to their endpoints."""

import click

from s3notify_platform.cli.common import QueuePlace, queue_options, run_in_foreground


@click.command(short_help="Push all topics that have an endpoint.")
@queue_options
@click.option(
    "--allow-network",
    "networks",
    multiple=True,
    metavar="CIDR",
    help="Permit endpoints in this network, like 10.1.0.0/16; else public addresses only. Repeatable.",
)
@click.option("--allow-http", is_flag=True, help="Permit http:// endpoints, and TLS that is not verified.")
@click.option(
    "--poll-seconds",
    type=click.FloatRange(min=0.1, max=60),
    default=2.0,
    show_default=True,
    help="Longest pause between two looks at an idle shard.",
)
def deliver(*, place: QueuePlace, networks: tuple[str, ...], allow_http: bool, poll_seconds: float) -> None:
    """Push all topics that have an endpoint, until SIGINT or SIGTERM.

    Any number of these may run: they share the work, and take over from one that dies within 15 s. HMAC keys
    are taken from the environment, by the names that the topics give (S3NOTIFY_PUSH_…).
    """
    from s3notify_platform.channels.delivery.endpoint import Egress
    from s3notify_platform.channels.delivery.worker import Delivery

    egress = Egress.of(networks, allow_http=allow_http)
    run_in_foreground(Delivery(place.queue(), egress=egress, poll_seconds=poll_seconds))
