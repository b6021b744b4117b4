"""`s3notify tag NAME`: tag the objects that are committed."""

import click

from s3notify_platform.cli.common import SourcePlace, json_option, source_with
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import say
from s3notify_platform.cli.tasks import carry_out, dry_run_option


@command(short_help="Tag the objects that are committed.")
@source_with("prefix", "committed_tags")
@click.option(
    "--again", is_flag=True, help="Look at all committed objects, not only at those of new commits."
)
@dry_run_option
@json_option
def tag(*, place: SourcePlace, again: bool, dry_run: bool, as_json: bool) -> None:
    """Tag the objects that were committed since the last time, so that lifecycle rules may archive or delete them.

    In Dagster {name}_tags does this after each batch, and `s3notify ingest` too, once committed_tags is set. Tagged is
    exactly the version that was committed, whole and without rejects: the bucket needs versions. Tags of others stay.
    With a rule that deletes, set on_delete: keep, or the rows leave with their objects.

    Safe to repeat. Exit code 1 if the store refused tags, with the reason; those that it refused among others that it
    took are tried again with --again.
    """
    from s3notify_platform.maintenance.tagging import TagCommitted

    task = TagCommitted(source=place.source(), again=again, progress=say)
    carry_out(task, dry_run=dry_run, as_json=as_json)
