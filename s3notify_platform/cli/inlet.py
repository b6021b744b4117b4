"""`s3notify inlet`: take in what others report of a bucket's changes, by SQS or by HTTP."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from s3notify_platform.cli.common import QueuePlace, queue_options, run_in_foreground

if TYPE_CHECKING:
    from s3notify_platform.channels.inlets.intake import Intake

SECRET_ENV = "S3NOTIFY_RECEIVER_SECRET"  # noqa: S105 - the name of a variable


@click.group(short_help="Take in changes from SQS, Ceph RGW or MinIO.")
def inlet() -> None:
    """Take in changes that others report: each goes to every topic that takes its key, and is signalled.

    --bucket is the platform's: queue and signals stand there. An inlet may be killed at any time, and any number of
    them may run side by side: what is not yet durable is reported again, and duplicates are harmless.
    """


def _intake_options(command: Callable[..., None]) -> Callable[..., None]:
    decorated: Callable[..., None] = command
    for option in (
        click.option(
            "--exclude",
            multiple=True,
            default=("_s3notify/",),
            show_default=True,
            help="Prefix of the platform's own objects, whose changes are no news.",
        ),
        click.option(
            "--keyspace",
            "keyspaces",
            nargs=2,
            multiple=True,
            metavar="SIGNALS KEYS",
            help="A source's prefix of signals, and its prefix of keys; once for each source. "
            "Like: --keyspace _s3notify/orders/keyspace/ raw/orders/",
        ),
        click.option(
            "--slots",
            type=click.IntRange(1, 1000),
            default=1000,
            show_default=True,
            help="Of the keyspaces, as in the sources.",
        ),
        click.option("--source-bucket", help="Bucket whose changes are reported, if another than --bucket."),
    ):
        decorated = option(decorated)
    return decorated


def _intake(
    place: QueuePlace,
    source_bucket: str | None,
    keyspaces: tuple[tuple[str, str], ...],
    exclude: tuple[str, ...],
    slots: int,
) -> "Intake":
    from s3notify_platform.channels.inlets.intake import intake_over

    if not keyspaces:
        click.echo("no --keyspace: changes go to the topics, and no source is signalled", err=True)
    return intake_over(
        place.queue(),
        place.s3(),
        bucket=source_bucket or place.bucket,
        keyspaces=keyspaces,
        excluded=(*exclude, place.queue_prefix),
        slots=slots,
    )


@inlet.command(short_help="Take in S3's events from an SQS queue.")
@queue_options
@_intake_options
@click.option("--queue-url", required=True, help="URL of the SQS queue.")
@click.option("--queue-region", help="Its region, if another than --region.")
@click.option("--queue-endpoint-url", help="SQS endpoint; AWS if not given.")
@click.option(
    "--visibility-seconds",
    type=click.IntRange(3, 43_200),
    default=60,
    show_default=True,
    help="After an inlet was killed, another one gets its messages so much later.",
)
def sqs(
    *,
    place: QueuePlace,
    queue_url: str,
    queue_region: str | None,
    queue_endpoint_url: str | None,
    visibility_seconds: int,
    **intake: Any,
) -> None:
    """Take in S3's event notifications from an SQS queue: as S3 sends them, by SNS, or by EventBridge.

    Once, by your own tooling: let s3.amazonaws.com send to the queue (sqs:SendMessage, on condition that
    aws:SourceArn is the bucket), and set the bucket's event notification to it:

    \b
      aws s3api put-bucket-notification-configuration --bucket BUCKET \\
        --notification-configuration '{"QueueConfigurations": [{"QueueArn": "ARN",
          "Events": ["s3:ObjectCreated:*", "s3:ObjectRemoved:*", "s3:LifecycleExpiration:*"],
          "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "raw/"}]}}}]}'

    Without that filter the platform's own objects in the same bucket are reported too: ignored, but paid for. Let
    the queue keep messages for 14 days; a redrive policy, if it has one, counts 100 receives or more, since a full
    topic uses them up too. Without one, messages that make no sense go to `s3notify inlet poison`.

    Permissions: `s3notify init --print iam --role inlet --event-queue NAME …`.
    """  # noqa: D301 - click's own mark
    from s3notify_platform.channels.inlets.sqs import SqsInlet
    from s3notify_platform.stores.sqs import SqsConfig, SqsQueue

    config = SqsConfig(
        queue_url=queue_url, region=queue_region or place.region, endpoint_url=queue_endpoint_url
    )
    run_in_foreground(
        SqsInlet(SqsQueue(config), _intake(place, **intake), visibility_seconds=visibility_seconds)
    )


@inlet.command(short_help="Take in posts of Ceph RGW and MinIO.")
@queue_options
@_intake_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8086, show_default=True)
@click.option(
    "--secret-env",
    "secret_envs",
    multiple=True,
    default=(SECRET_ENV,),
    show_default=True,
    help="Environment variable with the secret. May be given twice, to change it without a gap.",
)
@click.option("--cert", "cert_file", type=click.Path(path_type=Path), help="TLS certificate, PEM.")
@click.option("--key", "key_file", type=click.Path(path_type=Path), help="Its private key, PEM.")
@click.option("--plain-http", is_flag=True, help="Something in front does TLS: do without it off loopback.")
@click.option(
    "--max-body-bytes",
    type=click.IntRange(1024, 64 * 2**20),
    default=2**20,
    show_default=True,
    help="Of a post.",
)
@click.option("--max-connections", type=click.IntRange(1, 10_000), default=128, show_default=True)
def http(
    *,
    place: QueuePlace,
    host: str,
    port: int,
    secret_envs: tuple[str, ...],
    cert_file: Path | None,
    key_file: Path | None,
    plain_http: bool,
    max_body_bytes: int,
    max_connections: int,
    **intake: Any,
) -> None:
    """Take in S3 event posts of Ceph RGW, MinIO, and others; 200 only when a change is durable.

    The secret, of 16 characters or more, comes as `Authorization: Bearer SECRET` or bare (MinIO's auth_token), as
    the password of basic authentication (Ceph), or as `X-S3Notify-Secret`.

    \b
    Ceph:   a topic, created by TLS, with push-endpoint=https://any:SECRET@HOST:PORT/ and
              persistent=true, and the bucket's notification to it for s3:ObjectCreated:* and
              s3:ObjectRemoved:*
    MinIO:  mc admin config set ALIAS notify_webhook:1 endpoint=https://HOST:PORT/ auth_token=SECRET
              queue_dir=/var/lib/minio/events
            mc event add ALIAS/BUCKET arn:minio:sqs::1:webhook --event put,delete,ilm --prefix raw/

    `GET /health` answers 200 while it serves. Posts that make no sense are answered 400, and kept: see
    `s3notify inlet poison`.
    """  # noqa: D301 - click's own mark
    from s3notify_platform.channels.inlets.http import Receiver, ReceiverSettings
    from s3notify_platform.channels.inlets.http_server import Limits

    settings = ReceiverSettings(
        secret_envs=secret_envs,
        host=host,
        port=port,
        cert_file=cert_file,
        key_file=key_file,
        plain_http=plain_http,
        limits=Limits(connections=max_connections, body_bytes=max_body_bytes),
    )
    run_in_foreground(Receiver(settings, _intake(place, **intake)))


@inlet.command(short_help="List, show or remove what made no sense.")
@queue_options
@click.option("--show", metavar="ID", help="Write this message out as it came; cut off after 128 KB.")
@click.option("--discard", multiple=True, metavar="ID", help="Remove this one. May be given several times.")
@click.option("--discard-all", is_flag=True, help="Remove all.")
@click.option("--json", "as_json", is_flag=True, help="For machines: one object a line.")
def poison(
    *, place: QueuePlace, show: str | None, discard: tuple[str, ...], discard_all: bool, as_json: bool
) -> None:
    """List what the inlets could not make sense of, with reasons; show it, or remove it.

    What was mended is sent again the way it came: to the SQS queue, or by a post to the receiver.
    """
    from s3notify_platform.channels.inlets.poison import Quarantine

    quarantine = Quarantine(place.queue())
    if discard or discard_all:
        click.echo(f"removed {quarantine.discard(None if discard_all else frozenset(discard))}")
        return
    found = quarantine.all()
    if show is not None:
        for message in found:
            if message.id == show:
                click.echo(message.body, nl=False)
                return
        raise click.ClickException(f"no poison {show!r}")
    if as_json:
        for message in found:
            click.echo(
                json.dumps(
                    {
                        "id": message.id,
                        "origin": message.origin,
                        "reason": message.reason,
                        "time_ms": message.time_ms,
                        "length": message.length,
                    }
                )
            )
        return
    for message in found:
        click.echo(f"{message.id}  {message.origin}  {message.length} bytes  {message.reason}")
    click.echo(f"{len(found)} messages", err=True)
