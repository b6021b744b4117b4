"""`s3notify ingest NAME`: keeps a table up to date with its bucket, without Dagster."""

import signal
import sys
from dataclasses import MISSING, replace
from typing import TYPE_CHECKING, Any, Final

import click

from s3notify_platform.cli.common import metrics_option
from s3notify_platform.cli.configured import command, configured, find_code
from s3notify_platform.cli.ending import stop_on_signals
from s3notify_platform.cli.help_pages import OBJECTS, SettingOption
from s3notify_platform.cli.printing import say_wrapped
from s3notify_platform.cli.setting_options import Option, option_of, options, setting_option
from s3notify_platform.kernel.setting import named
from s3notify_platform.local.attributes import SourceAttributes, SparkSettings, imported
from s3notify_platform.local.fingerprint import fingerprint
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.settings import SETTINGS, topic_difference

if TYPE_CHECKING:
    from s3notify_platform.source.source import Source

_ATTRIBUTES: Final = named(BatchSettings, SourceAttributes, SparkSettings)

_USUAL: Final = (
    "bucket", "prefix", "include", "exclude",
    "format", "schema", "schema_hints", "expect", "mismatches",
    "latest_key", "latest_order_by", "cluster_by",
    "endpoint_url", "region", "profile",
)  # fmt: skip
"""The settings that `--help` shows."""


def _setting(name: str) -> Option:
    more: dict[str, Any] = (
        {} if SETTINGS[name].default is MISSING else {"default": None}
    )  # without an option, the data source uses its own default
    if name == "bucket":
        more["heading"] = OBJECTS
    return setting_option(name, rare=name not in _USUAL, **more)


@command(short_help="Keep a source's table up to date, without Dagster.")
@click.argument("name")
@click.option(
    "--once", is_flag=True, help="Ingest all changes up to now, then end. The first time: all objects."
)
@click.option("--sweep", is_flag=True, help="First compare all objects with the table.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    default=10.0,
    show_default=True,
    help="Time between two polls.",
)
@option_of(_ATTRIBUTES["list_seconds"], rare=True, default=None)
@option_of(_ATTRIBUTES["max_attempts"], rare=True)
@option_of(_ATTRIBUTES["backoff_seconds"], rare=True)
@option_of(_ATTRIBUTES["transform"])
@option_of(_ATTRIBUTES["master"])
@click.option("--conf", "confs", multiple=True, metavar="NAME=VALUE", help="Spark property. Repeatable.")
@click.option("--remote", hidden=True)
@metrics_option
@click.option(
    "-o",
    "--option",
    "more",
    multiple=True,
    metavar="NAME=VALUE",
    cls=SettingOption,
    rare=True,
    help="Option of the data source, like poll_seconds=2. Repeatable.",
)
@options(*(_setting(name) for name in dict.fromkeys((*_USUAL, *SETTINGS)) if name != "name"))
def ingest(
    *,
    transform: str | None,
    more: tuple[str, ...],
    master: str | None,
    confs: tuple[str, ...],
    remote: str | None,
    once: bool,
    sweep: bool,
    every: float,
    metrics: str | None,
    max_attempts: int,
    backoff_seconds: float,
    **settings: Any,
) -> None:
    """Keep the table of source NAME up to date until SIGINT or SIGTERM. The first time, all objects are read.

    Each round of changes becomes one version of the table. Each row is committed exactly once, even if processes are
    killed; another machine can continue. Changes come from the queue if there is a topic NAME, else from listings of
    the bucket. The command creates the topic, except with --once --sweep. Slot assets need Dagster.

    With --once, exit code 1 means that a slot could not be committed, or that a derived table is behind. Settings that
    contradict the table are refused: see `s3notify table migrate` and `s3notify schema set`. `s3notify guide options`
    explains all settings.
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
            "--remote is not possible: run this command on Spark's driver, with --master in place of Spark Connect"
        )
    find_code()
    function = imported(transform) if transform else None
    code_version = fingerprint(transform)
    os.environ.update(java_environment())
    prepare_environment()
    reading = reading_of(given)
    source = reading.source
    opened = source.open_table(create=False)  # an unusable table or topic is refused before Spark starts
    check_declared_types(source, opened, transformed=function is not None)
    if problem := topic_problem(source.location):
        raise click.ClickException(problem)
    if not (once and sweep):
        _make_topic(source)
    running: list[ContinuousIngest] = []
    shown = Metrics(
        "ingest", lambda: {} if not running else running[0].counts(), queue=source.location.queue()
    )
    builder = SparkSession.builder.appName(f"s3notify ingest {given['name']}")
    for name, value in session_conf(master=master or "local[*]", extra=_pairs(confs)).items():
        builder = builder.config(name, value)
    with served(metrics, shown), stop_on_signals("ingest") as stop:
        spark = builder.getOrCreate()
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))  # Spark has replaced SIGINT's handler
        spark.sparkContext.setLogLevel("ERROR")
        try:
            with reading_bar(spark.sparkContext) as reads:
                continuous = ContinuousIngest(
                    spark=spark,
                    source=source,
                    transform=function,
                    code_version=code_version,
                    progress=lambda text: say_wrapped(text, err=True),
                    reads=reads,
                    list_seconds=reading.list_seconds,
                    settings=BatchSettings(max_attempts=max_attempts, backoff_seconds=backoff_seconds),
                )
                running.append(continuous)
                continuous.run(stop, every_seconds=None if once else every, sweep=sweep)
        except (*JOB_ERRORS, OSError) as error:
            if not stop.is_set():  # after a signal, the error only shows that Java got the signal, too
                raise click.ClickException(reason_of(error)) from error
    if once and not stop.is_set() and (continuous.failing or continuous.behind):
        sys.exit(1)


def _make_topic(source: "Source") -> None:
    """Creates the source's topic, as Dagster does. Without a topic, inlets ignore the source's changes, and publishers
    cannot announce them. If the topic exists, names the settings in which it differs from the YAML. Cost: 1 request,
    and the requests of `Topics.create`.
    """
    name, topics = source.name, source.location.queue().topics
    found = topics.find(name)
    usual = found.settings if found is not None else TopicSettings()
    wanted = replace(
        next((each.topic for each in configured() if each.name == name), usual),
        bucket=source.input.bucket.bucket,
        prefix=source.input.prefix,
        slots=source.location.slots,
        signals=source.location.signals,
        rules=(),
    )
    if found is None:
        topics.create(name, wanted)
        say_wrapped(
            f"topic {name!r} was created: changes that are announced to it are found without a listing",
            err=True,
        )
    elif why := topic_difference(name, found.settings, wanted):
        say_wrapped(f"warning: {why}", err=True)


def _pairs(texts: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{text!r}: give NAME=VALUE")
        found[name] = value
    return found
