"""`s3notify explain KEY`: what happened to this object."""

import json
import os
from typing import TYPE_CHECKING

import click

from s3notify_platform.cli.common import QueuePlace, queue_options
from s3notify_platform.slots import SLOT_COUNT

if TYPE_CHECKING:
    from s3notify_platform.explain import SensorView
    from s3notify_platform.spark.source import Source


@click.command()
@click.argument("key")
@queue_options
@click.option("--name", required=True, help="Name of the source.")
@click.option("--prefix", default="", help="Of the source's keys.")
@click.option(
    "--platform-bucket",
    help="Bucket of the platform's own objects, if another; --bucket is the source's.",
)
@click.option("--platform-prefix", default="", help="Default: _s3notify/NAME/.")
@click.option("--keyspace", default="", help="Prefix of the signals; default: PLATFORM_PREFIX + keyspace/.")
@click.option(
    "--slots", type=click.IntRange(1, SLOT_COUNT), default=SLOT_COUNT, help="Of the keyspace; all by default."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document, for machines.")
def explain(
    key: str,
    *,
    place: QueuePlace,
    name: str,
    prefix: str,
    platform_bucket: str | None,
    platform_prefix: str,
    keyspace: str,
    slots: int,
    as_json: bool,
) -> None:
    """Say what happened to the object KEY of a source: signalled, queued, in a batch, committed, rejected, or why not.

    Reads only. Failing slots and the runs of batches are told where DAGSTER_HOME names the Dagster instance.

    Exit code 0 if the table holds what the bucket does: the object as it is, with all its records, or nothing where
    it was deleted. 1 otherwise, and if the answer could not be had.
    """
    from dataclasses import replace

    from s3notify_platform.explain import explain as look
    from s3notify_platform.spark.source import Source

    bucket = place.s3()
    source = Source(
        name=name,
        bucket=bucket,
        prefix=prefix,
        format="auto",
        platform=replace(bucket, bucket=platform_bucket or place.bucket),
        platform_prefix=platform_prefix,
        keyspace_prefix=keyspace,
        queue_prefix=place.queue_prefix,
        slots=slots,
        records_table=place.records_config(),
    )
    answer = look(source, key, sensor=_sensor_view(source, key))
    click.echo(json.dumps(answer.document(), indent=2) if as_json else "\n".join(answer.lines))
    if not answer.verdict.settled:
        raise click.exceptions.Exit(1)


def _sensor_view(source: "Source", key: str) -> "SensorView | None":
    """What the sensor knows, if there is an instance to ask. Dagster is imported only then."""
    if not os.environ.get("DAGSTER_HOME"):
        return None
    import dagster as dg

    from s3notify_platform.orchestration.explain import sensor_view

    with dg.DagsterInstance.get() as instance:
        return sensor_view(instance, source, key)
