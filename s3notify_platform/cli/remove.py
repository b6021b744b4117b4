"""`s3notify remove NAME`: deletes everything that the platform made for a source."""

from typing import Final

import click

from s3notify_platform.cli.common import SourcePlace, json_option, source_options, yes_option
from s3notify_platform.cli.configured import command, configured, dagster_instance
from s3notify_platform.cli.printing import say_wrapped
from s3notify_platform.cli.tasks import carry_out, dry_run_option
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.project import ConfiguredSource

TICKS_SECONDS: Final = 60.0
"""A sensor that ticked within this time counts as running, and would make the source's topic and table again."""


@command(short_help="Delete a source's tables, signals, topic and records.")
@source_options
@yes_option
@click.option(
    "--force", is_flag=True, help="Remove the source even while a batch is open or the sensor is on."
)
@dry_run_option
@json_option
def remove(*, place: SourcePlace, yes: bool, force: bool, dry_run: bool, as_json: bool) -> None:
    """Delete the tables, signals, topic and records of source NAME. The objects of the bucket stay.

    The command lists first what it will delete. Before the removal, stop the source's sensor (`s3notify pause NAME`),
    runs, streams and writers. The command is refused while a batch is open, or while the sensor of this DAGSTER_HOME is
    on. Safe to repeat, and to kill: until the deletion is complete, runs refuse the table. If `s3notify init NAME
    --events` made the bucket's events, `s3notify init NAME --events --remove` deletes their queue, topic and
    notification. Afterwards delete the YAML, reload the code in Dagster, and then end the runs of the job
    NAME_services: an inlet's run never ends by itself.
    """
    from s3notify_platform.maintenance.removal import Removal

    if not (force or dry_run):
        _check_stopped(str(place.settings["name"]))
    task = Removal(location=place.location(), force=force)
    carry_out(task, dry_run=dry_run, as_json=as_json, yes=yes)
    name = str(place.settings["name"])
    found = next((source for source in configured() if source.name == name), None)
    if found is None:
        return
    if any(found.checked.get(inlet) is not None for inlet in ("sqs", "http")):
        say_wrapped(
            f"The bucket's events stay. Before you delete the YAML: `s3notify init {name} --events --remove`",
            err=True,
        )
    if not dry_run:
        say_wrapped(
            f"Still to do: delete {_place(found)}; in Dagster, reload the code, and then end the runs of the job "
            f"{name}_services, if there are any",
            err=True,
        )


def _place(source: ConfiguredSource) -> str:
    """The folder of the source's YAML. If the folder or the file may hold other definitions, the text names the source
    and the file instead.
    """
    folder = source.file.parent
    alone = [*folder.iterdir()] == [source.file] and "\n---" not in source.file.read_text("utf-8")
    return f"{folder}/" if alone and folder != source.folder else f"the source from {source.file}"


def _check_stopped(name: str) -> None:
    """`UsageError` while the source's sensor ticks: the sensor would make topic and table again, and load all
    objects.
    """
    with dagster_instance() as instance:
        if instance is None:
            return
        from s3notify_platform.orchestration.pausing import seconds_since_tick

        since = seconds_since_tick(instance, name)
    if since is not None and since < TICKS_SECONDS:
        raise UsageError(
            f"{name}_sensor ticked {since:.0f} s ago, and would load the source again: run `s3notify pause {name}` "
            "first. If that sensor belongs to another environment, unset DAGSTER_HOME"
        )
