"""`s3notify pause` and `s3notify resume`: the switch of a source's sensor in Dagster."""

import click

from s3notify_platform.cli.common import json_option
from s3notify_platform.cli.configured import dagster_instance
from s3notify_platform.cli.printing import print_json, say
from s3notify_platform.kernel.errors import UsageError


def _switch(name: str, *, on: bool, as_json: bool) -> None:
    with dagster_instance() as instance:
        if instance is None:
            raise UsageError(
                "there is no Dagster here: set DAGSTER_HOME to its folder. `s3notify ingest` is paused by SIGTERM, and "
                "goes on where it was when it is started again"
            )
        from s3notify_platform.orchestration.pausing import switch

        changed = switch(instance, name, on=on)
    if as_json:
        print_json({"source": name, "running": on, "changed": changed})
    else:
        say(f"{name} {'is' if changed else 'was already'} {'resumed' if on else 'paused'}")


@click.command(short_help="Open no further batch of a source, until resume.")
@click.argument("name")
@json_option
def pause(*, name: str, as_json: bool) -> None:
    """Open no further batch of the source NAME: its sensor is switched off, as by the switch in Dagster's UI.

    Runs that have begun end as usual. Changes wait, and nothing is lost, however long: see `s3notify status`. The
    queue may get full, and then writers that queue are refused: its capacity is what they may be ahead.
    """
    _switch(name, on=False, as_json=as_json)


@click.command(short_help="Go on with a source that was paused.")
@click.argument("name")
@json_option
def resume(*, name: str, as_json: bool) -> None:
    """Go on with the source NAME: its sensor is switched on, and takes in what changed meanwhile."""
    _switch(name, on=True, as_json=as_json)
