"""`s3notify resume NAME`: starts a paused source's sensor in Dagster."""

import click

from s3notify_platform.cli.common import json_option
from s3notify_platform.cli.pause import switch_source


@click.command(short_help="Resume a paused source.")
@click.argument("name")
@json_option
def resume(*, name: str, as_json: bool) -> None:
    """Resume the source NAME: turn its sensor on. The next batch reads the changes that have waited."""
    switch_source(name, on=True, as_json=as_json)
