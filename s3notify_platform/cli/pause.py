"""`s3notify pause NAME`: stops a source's sensor in Dagster."""

import click

from s3notify_platform.cli.common import json_option
from s3notify_platform.cli.configured import dagster_instance
from s3notify_platform.cli.printing import print_json, say_wrapped
from s3notify_platform.kernel.errors import UsageError


def switch_source(name: str, *, on: bool, as_json: bool) -> None:
    """Turns a source's sensor on or off, and prints the result."""
    with dagster_instance() as instance:
        if instance is None:
            raise UsageError(
                "no Dagster instance is known: set DAGSTER_HOME to its folder. To pause `s3notify ingest`, send it "
                "SIGTERM; it continues when it is started again"
            )
        from s3notify_platform.orchestration.pausing import switch

        changed = switch(instance, name, on=on)
    if as_json:
        print_json({"source": name, "running": on, "changed": changed})
    else:
        say_wrapped(f"{name} {'is' if changed else 'was already'} {'resumed' if on else 'paused'}")


@click.command(short_help="Pause a source in Dagster.")
@click.argument("name")
@json_option
def pause(*, name: str, as_json: bool) -> None:
    """Pause the source NAME: turn its sensor off, as the switch in Dagster's UI does. No further batch begins.

    Runs that have begun end as usual. Changes wait, and none is lost: see `s3notify status`. If the queue becomes full
    meanwhile, writers that queue changes are refused until the source is resumed.
    """
    switch_source(name, on=False, as_json=as_json)
