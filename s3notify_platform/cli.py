"""`s3notify`: the commands. Each imports what it needs when it runs, so that `--help` is quick."""

import sys
from typing import TYPE_CHECKING

import click

from s3notify_platform.errors import S3NotifyError

if TYPE_CHECKING:
    from rich.table import Table

    from s3notify_platform.stores.capabilities import Capabilities


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Know what changed in a bucket, and turn exactly that into committed tables."""


@main.command()
@click.option("--bucket", required=True, help="Bucket to look at.")
@click.option("--endpoint-url", help="S3 endpoint; AWS if not given.")
@click.option("--region", default="us-east-1", show_default=True, help="The bucket's region.")
@click.option("--prefix", default="", help="Where scratch objects may be written for a moment.")
def doctor(bucket: str, endpoint_url: str | None, region: str, prefix: str) -> None:
    """Try out what the store keeps of what the platform needs.

    Credentials come from the environment, a profile or an instance role. About 50 requests; what is written is
    deleted again. Exit code 0 if the platform can run on this bucket, 1 if not, with the reason.
    """
    from contextlib import closing

    from rich.console import Console

    from s3notify_platform.stores.capabilities import probe, require
    from s3notify_platform.stores.config import S3Config
    from s3notify_platform.stores.s3 import S3ObjectStore

    config = S3Config(bucket=bucket, endpoint_url=endpoint_url, region=region)
    with closing(S3ObjectStore(config, connect_seconds=5.0, attempts=3)) as store:
        found = probe(store, prefix)
    console = Console()
    console.print(_table(f"{bucket} at {endpoint_url or 'AWS S3'}", found))
    for problem in found.problems:
        console.print(f"- {problem}", markup=False, highlight=False, soft_wrap=True)
    try:
        require(found)
    except S3NotifyError as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


def _table(title: str, found: "Capabilities") -> "Table":
    from rich.table import Table

    table = Table("Looked at", "Found", title=title, title_justify="left")
    for what, holds in (
        ("reachable", found.reachable),
        ("may list", found.can_list),
        ("may read", found.can_read),
        ("may write", found.can_write),
        ("may delete", found.can_delete),
        ("create if absent", found.create_if_absent),
        ("put if match", found.put_if_match),
        ("delete if match", found.delete_if_match),
        ("copy if absent", found.copy_if_absent),
        ("list in key order", found.list_is_ordered),
    ):
        table.add_row(what, "[green]yes[/]" if holds else "[red]no[/]")
    skew = found.clock_skew_ms
    table.add_row("server's clock", "not told" if skew is None else f"{skew / 1000:+.1f} s against ours")
    table.add_row("mode", found.mode)
    return table
