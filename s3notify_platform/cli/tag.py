"""`s3notify tag NAME`: tags committed objects."""

import click

from s3notify_platform.cli.common import SourcePlace, json_option, source_with
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import say_wrapped
from s3notify_platform.cli.tasks import carry_out, dry_run_option


@command(short_help="Tag committed objects for lifecycle rules.")
@source_with("prefix", "committed_tags")
@click.option(
    "--again", is_flag=True, help="Check all committed objects, not only the objects of new commits."
)
@dry_run_option
@json_option
def tag(*, place: SourcePlace, again: bool, dry_run: bool, as_json: bool) -> None:
    """Tag the objects of source NAME that were committed since the last time, for lifecycle rules of the bucket.

    The setting committed_tags has the tags. With this setting, Dagster's runs and `s3notify ingest` tag the objects
    after each batch. Only the committed version of an object is tagged, and only if all of its records
    are committed; the bucket must have versioning. Other tags of an object stay. If a lifecycle rule deletes objects,
    set on_delete: keep. Otherwise the rows of deleted objects leave the table, too.

    Safe to repeat. Exit code 1 if the store refused tags; the reason is printed. --again retries objects whose tags
    were refused while tags of other objects were accepted.
    """
    from s3notify_platform.maintenance.tagging import TagCommitted

    task = TagCommitted(source=place.source(), again=again, progress=say_wrapped)
    carry_out(task, dry_run=dry_run, as_json=as_json)
