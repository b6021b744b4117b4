"""`s3notify inlet`: take in changes of a bucket that other systems report; each inlet is a registered service."""

from dataclasses import asdict

import click

from s3notify_platform.cli.common import QueuePlace, json_option, queue_options
from s3notify_platform.cli.printing import print_found, say, say_as_received
from s3notify_platform.cli.services import ServiceGroup


@click.group(cls=ServiceGroup, direction="inlet", short_help="Take in changes from SQS, Ceph RGW or MinIO.")
def inlet() -> None:
    """Take in changes that other systems report: each goes to every topic that takes its key, and is signalled.

    --bucket is the bucket whose changes are reported; queue and signals are in --platform-bucket, by default the same.
    An inlet may be killed at any time, and any number of them may run at once: what is not yet durable is reported
    again, and duplicates are harmless.
    """


@inlet.command(short_help="List, show or remove messages that could not be parsed.")
@queue_options
@click.option("--show", metavar="ID", help="Print this message as received; cut off after 128 KB.")
@click.option("--discard", multiple=True, metavar="ID", help="Remove this one. May be given several times.")
@click.option("--discard-all", is_flag=True, help="Remove all.")
@json_option
def poison(
    *, place: QueuePlace, show: str | None, discard: tuple[str, ...], discard_all: bool, as_json: bool
) -> None:
    """List messages that the inlets could not parse or queue, with reasons; show them, or remove them.

    Send a corrected message again the way it came: to the SQS queue, or by a post to the HTTP inlet.
    """
    from s3notify_platform.channels.inlets.poison import PoisonStore

    kept = PoisonStore(place.queue())
    if discard or discard_all:
        say(f"removed {kept.discard(None if discard_all else frozenset(discard))}")
        return
    found = kept.all()
    if show is not None:
        for message in found:
            if message.id == show:
                say_as_received(message.body)
                return
        raise click.ClickException(f"no poison message {show!r}")
    columns = {"Message": "id", "Origin": "origin", "Bytes": "length", "Reason": "reason"}
    without_body = [{k: v for k, v in asdict(message).items() if k != "body"} for message in found]
    print_found(without_body, columns, as_json=as_json, nothing="no messages")
