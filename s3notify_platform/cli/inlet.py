"""`s3notify inlet`: receive changes that other systems report. Each inlet is a registered service."""

from dataclasses import asdict

import click

from s3notify_platform.cli.common import QueuePlace, json_option, queue_options
from s3notify_platform.cli.printing import print_found, say_as_received, say_wrapped
from s3notify_platform.cli.services import ServiceGroup


@click.group(cls=ServiceGroup, direction="inlet", short_help="Receive changes from SQS, Ceph RGW or MinIO.")
def inlet() -> None:
    """Receive changes that other systems report: add each change to all topics that match its key, and signal it.

    --bucket is the bucket whose changes are reported. Queue and signals are in --platform-bucket; default: the same
    bucket. Several inlets may run at once, and an inlet may be killed at any time. Changes that are not durable yet are
    reported again, and duplicates are harmless.
    """


@inlet.command(short_help="List, show or delete messages that inlets refused.")
@queue_options
@click.option("--show", metavar="ID", help="Print this message as received, at most 128 KB.")
@click.option("--discard", multiple=True, metavar="ID", help="Delete this message. Repeatable.")
@click.option("--discard-all", is_flag=True, help="Delete all messages.")
@json_option
def poison(
    *, place: QueuePlace, show: str | None, discard: tuple[str, ...], discard_all: bool, as_json: bool
) -> None:
    """List messages that the inlets could not parse or queue, with reasons; show or delete them.

    To repair a message, send the corrected message to the SQS queue, or post it to the HTTP inlet.
    """
    from s3notify_platform.channels.inlets.poison import PoisonStore

    kept = PoisonStore(place.queue())
    if discard or discard_all:
        say_wrapped(f"removed {kept.discard(None if discard_all else frozenset(discard))}")
        return
    found = kept.all()
    if show is not None:
        for message in found:
            if message.id == show:
                say_as_received(message.body)
                return
        raise click.ClickException(f"no poison message {show!r}; run the command without --show for a list")
    columns = {"Message": "id", "Origin": "origin", "Bytes": "length", "Reason": "reason"}
    without_body = [{k: v for k, v in asdict(message).items() if k != "body"} for message in found]
    print_found(without_body, columns, as_json=as_json, nothing="no messages")
