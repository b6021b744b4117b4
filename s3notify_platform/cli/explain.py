"""`s3notify explain KEY`: reports what happened to one object."""

from typing import TYPE_CHECKING, Final

import click

from s3notify_platform.cli.common import SourcePlace, json_option, key_with
from s3notify_platform.cli.configured import command, configured, dagster_instance
from s3notify_platform.cli.printing import print_json, say, say_wrapped
from s3notify_platform.kernel.setting import named
from s3notify_platform.source.choice_settings import ChoiceSettings

if TYPE_CHECKING:
    from s3notify_platform.explain import SensorView
    from s3notify_platform.source.source import Source


_AS_IS: Final = ("key: ", "data file: ", "    ")
"""How lines begin that are not wrapped: keys, and lines of tracebacks."""


@command(short_help="Explain what happened to one object.")
@click.argument("key")
@key_with(*named(ChoiceSettings))
@json_option
def explain(key: str, *, place: SourcePlace, as_json: bool) -> None:
    """Report what happened to the object KEY: signalled, queued, in a batch, committed or rejected, with reasons.

    Reads only. If DAGSTER_HOME names a Dagster instance, the report includes failing slots and runs.

    Exit code 0 if the table agrees with the bucket. The table agrees if it has all records of the object's current
    version, and no new read of this version is requested. If the object is deleted, the table agrees if it has no rows
    of the object. Exit code 1 otherwise, or if the answer is unknown.
    """
    from s3notify_platform.explain import explain as look

    source = place.source()
    if not configured() and not source.location.is_begun():
        source.location.check_exists()
    answer = look(source, key, sensor=_sensor_view(source, key))
    if as_json:
        print_json(answer.document())
    else:
        for line in answer.lines:
            (say if line.startswith(_AS_IS) else say_wrapped)(line)
    if not answer.verdict.settled:
        raise click.exceptions.Exit(1)


def _sensor_view(source: "Source", key: str) -> "SensorView | None":
    """The state of the source's sensor; None without a Dagster instance."""
    with dagster_instance() as instance:
        if instance is None:
            return None
        from s3notify_platform.orchestration.sensor_views import sensor_view

        return sensor_view(instance, source, key)
