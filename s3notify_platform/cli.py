"""`s3notify`: the commands. Each imports what it needs when it runs, so that `--help` is quick."""

import sys
from pathlib import Path
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

    Credentials come from the environment, a profile or an instance role. About 50 requests; all that
    is written is deleted again. Exit code 0 if the platform can run
    on this bucket, 1 if not, with the reason.
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
    # An unusable store's problems are the reason itself, told below.
    for problem in found.problems if found.mode != "unusable" else ():
        console.print(f"- {problem}", markup=False, highlight=False, soft_wrap=True)
    try:
        require(found)
    except S3NotifyError as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


@main.command()
@click.option(
    "--once", is_flag=True, help="End by itself when all is committed; exit 0 only if the table is exact."
)
@click.option("--folder", type=click.Path(path_type=Path), default=Path(".s3notify/demo"), show_default=True)
@click.option("--port", type=int, help="Port of the Dagster UI; a free one if not given.")
@click.option("--objects", type=click.IntRange(20, 20_000), default=120, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed ends in the same table.")
def demo(*, once: bool, folder: Path, port: int | None, objects: int, seed: int) -> None:
    """Run the main job on the embedded S3 server, live: publish, see what changed, commit.

    All data stays in the folder, and a demo that was killed goes on from there. Ctrl-C ends it cleanly.
    """
    from s3notify_platform.local.demo import Demo

    try:
        exact = Demo(folder, objects=objects, port=port, seed=seed).run(once=once)
    except S3NotifyError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if exact else 1)


@main.command()
@click.option(
    "--defs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Folder with a defs.yaml for each source.",
)
@click.option("--home", type=click.Path(path_type=Path), default=Path(".s3notify/home"), show_default=True)
@click.option(
    "--port", type=int, default=3000, show_default=True, help="Port of the Dagster UI, on loopback."
)
def dev(defs: Path, home: Path, port: int) -> None:
    """Watch your own buckets: Dagster's UI, daemon and sensors for the sources of a folder.

    Credentials come from the environment, a profile or an instance role.
    """
    from s3notify_platform.definitions import DEFS_VARIABLE
    from s3notify_platform.local.dagster_dev import DagsterDev
    from s3notify_platform.local.java import java_environment

    environment = {DEFS_VARIABLE: str(defs.resolve()), **java_environment(home / "java")}
    try:
        with DagsterDev(home, port=port, environment=environment) as dagster:
            dagster.wait_ready()
            click.echo(f"Dagster UI at {dagster.url}, log in {dagster.log}; Ctrl-C ends it")
            dagster.wait()
    except KeyboardInterrupt:
        return
    except S3NotifyError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.argument("keys", nargs=-1, required=True)
@click.option("--bucket", required=True, help="Bucket that holds the keyspace.")
@click.option("--keyspace", required=True, help="Prefix of the signals, as in the source's keyspace_prefix.")
@click.option("--endpoint-url", help="S3 endpoint; AWS if not given.")
@click.option("--region", default="us-east-1", show_default=True)
def signal(
    keys: tuple[str, ...], *, bucket: str, keyspace: str, endpoint_url: str | None, region: str
) -> None:
    """Tell that objects were written by a program that does not signal: 1 PUT a touched slot, and 1."""
    from s3notify_platform.protocols.keyspace import Publisher
    from s3notify_platform.stores.config import S3Config
    from s3notify_platform.stores.s3 import S3ObjectStore

    store = S3ObjectStore(S3Config(bucket=bucket, endpoint_url=endpoint_url, region=region))
    try:
        Publisher(store, prefix=keyspace).signal(keys)
    except S3NotifyError as error:
        raise click.ClickException(str(error)) from error


@main.command()
@click.option("--bucket", required=True, help="Bucket that holds the table.")
@click.option("--table", required=True, help="Prefix of the table, like _s3notify/orders/table/.")
@click.option(
    "--days", type=click.FloatRange(min=1), default=7.0, show_default=True, help="Days of history to keep."
)
@click.option("--endpoint-url", help="S3 endpoint; AWS if not given.")
@click.option("--region", default="us-east-1", show_default=True)
def vacuum(*, bucket: str, table: str, days: float, endpoint_url: str | None, region: str) -> None:
    """Remove commits older than the history to keep, and files that no commit names any more."""
    from s3notify_platform.protocols.conditional_commit import NativeCommit
    from s3notify_platform.stores.config import S3Config
    from s3notify_platform.stores.s3 import S3ObjectStore
    from s3notify_platform.table.commit import SlotTable
    from s3notify_platform.table.layout import TableLayout
    from s3notify_platform.table.vacuum import vacuum as run_vacuum

    store = S3ObjectStore(S3Config(bucket=bucket, endpoint_url=endpoint_url, region=region))
    try:
        report = run_vacuum(
            SlotTable(store, TableLayout(prefix=table), NativeCommit(store)), retention_seconds=days * 86_400
        )
    except S3NotifyError as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"removed {report.commits_removed} commits and {report.files_removed} files, {report.bytes_removed} bytes; "
        f"kept {report.commits_kept} commits and {report.files_kept} files"
    )


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


if __name__ == "__main__":
    main()
