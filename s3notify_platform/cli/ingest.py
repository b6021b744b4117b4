"""`s3notify ingest`: keep a committed table up to date with its bucket, without Dagster."""

import signal
import sys
from dataclasses import MISSING
from typing import Any

import click

from s3notify_platform.cli.common import metrics_option, options, setting_option
from s3notify_platform.cli.configured import command, find_code
from s3notify_platform.cli.ending import stop_on_signals
from s3notify_platform.cli.printing import say
from s3notify_platform.local.attributes import imported
from s3notify_platform.local.fingerprint import fingerprint
from s3notify_platform.source.settings import SETTINGS


def _given_or_none(name: str) -> dict[str, Any]:
    """The data source has the defaults of settings that are not given."""
    return {} if SETTINGS[name].default is MISSING else {"default": None}


@command(short_help="Ingest what changes, without Dagster.")
@click.argument("name")
@options(*(setting_option(name, **_given_or_none(name)) for name in SETTINGS if name != "name"))
@click.option(
    "--transform", help="Import path of a (DataFrame) -> DataFrame that keeps _slot, _key, _etag, _offset."
)
@click.option("--list-seconds", help="Seconds between two listings of the bucket, at least; default: 10.")
@click.option(
    "-o",
    "--option",
    "more",
    multiple=True,
    metavar="NAME=VALUE",
    help="Any other option of the data source, like poll_seconds=2. Repeatable.",
)
@click.option("--master", default="local[*]", show_default=True, help="Where Spark runs.")
@click.option(
    "--conf", "confs", multiple=True, metavar="NAME=VALUE", help="A further Spark property. Repeatable."
)
@click.option("--remote", hidden=True)
@click.option(
    "--once", is_flag=True, help="Ingest what is signalled now, the first time everything; then end."
)
@click.option(
    "--sweep", is_flag=True, help="First compare all objects, whatever was seen: as if nothing had been."
)
@metrics_option
@click.option(
    "--every", type=click.FloatRange(min=0.1), default=10.0, show_default=True, help="Seconds between polls."
)
def ingest(
    *,
    transform: str | None,
    more: tuple[str, ...],
    master: str,
    confs: tuple[str, ...],
    remote: str | None,
    once: bool,
    sweep: bool,
    every: float,
    metrics: str | None,
    **settings: Any,
) -> None:
    """Ingest changes of the source NAME until SIGINT or SIGTERM.

    All slots of a round in one version, exactly once, even if processes are killed. Any machine goes on where another
    one was.

    The first time, the whole source is ingested. With --once the exit code is 1 if a slot could not be committed, or a
    table that follows (--latest-key, --cluster-by) is behind. A bucket, prefix or number of slots that is not the
    table's, and a table of which a part is missing, are refused: see `s3notify table`. So are types that the table's
    columns do not have: see `s3notify schema set`. With a topic of the source's name (`s3notify topics create NAME`) it
    follows the queue, else it lists. Slot assets are Dagster's.
    """
    import os

    from pyspark.sql import SparkSession

    from s3notify_platform.channels.metrics import Metrics, served
    from s3notify_platform.cli.reading_bar import reading_bar
    from s3notify_platform.engine.batch.list_or_follow import topic_problem
    from s3notify_platform.local.java import java_environment
    from s3notify_platform.source.declared_types import check_declared_types
    from s3notify_platform.spark.continuous import ContinuousIngest
    from s3notify_platform.spark.datasource.options import reading_of
    from s3notify_platform.spark.failures import JOB_ERRORS, reason_of
    from s3notify_platform.spark.session import prepare_environment, session_conf

    given = {name: str(value) for name, value in settings.items() if value not in (None, "")} | _pairs(more)
    if remote:
        raise click.UsageError(
            "it runs on Spark's driver: in place of Spark Connect, start it there, with a --master"
        )
    find_code()
    function = imported(transform) if transform else None
    code_version = fingerprint(transform)
    os.environ.update(java_environment())
    prepare_environment()
    reading = reading_of(given)
    source = reading.source
    opened = source.open_table(create=False)  # refused before Spark starts, and so is its topic
    check_declared_types(source, opened, transformed=function is not None)
    if problem := topic_problem(source.location):
        raise click.ClickException(problem)
    running: list[ContinuousIngest] = []
    shown = Metrics(
        "ingest", lambda: {} if not running else running[0].counts(), queue=source.location.queue()
    )
    builder = SparkSession.builder.appName(f"s3notify ingest {given['name']}")
    for name, value in session_conf(master=master, extra=_pairs(confs)).items():
        builder = builder.config(name, value)
    with served(metrics, shown), stop_on_signals("ingest") as stop:
        spark = builder.getOrCreate()
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))  # Spark has set its own
        spark.sparkContext.setLogLevel("ERROR")
        try:
            with reading_bar(spark.sparkContext) as reads:
                continuous = ContinuousIngest(
                    spark=spark,
                    source=source,
                    transform=function,
                    code_version=code_version,
                    progress=lambda text: say(text, err=True),
                    reads=reads,
                    list_seconds=reading.list_seconds,
                )
                running.append(continuous)
                continuous.run(stop, every_seconds=None if once else every, sweep=sweep)
        except (*JOB_ERRORS, OSError) as error:
            if not stop.is_set():  # else Java got the signal too, and was quicker
                raise click.ClickException(reason_of(error)) from error
    if once and not stop.is_set() and (continuous.failing or continuous.behind):
        sys.exit(1)


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{text!r}: give NAME=VALUE")
        found[name] = value
    return found
