"""`s3notify`: the commands. Each imports what it needs when it runs, so that `--help` is quick."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from s3notify_platform.cli.common import region_option
from s3notify_platform.cli.services import ServiceGroup
from s3notify_platform.errors import S3NotifyError
from s3notify_platform.stores.config import QUEUE_PREFIX

if TYPE_CHECKING:
    from rich.table import Table

    from s3notify_platform.deploy import Role
    from s3notify_platform.stores.probe import Capabilities, CommitChoice


@click.group(cls=ServiceGroup, direction="outlet", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Know what changed in a bucket, and turn exactly that into committed tables.

    \b
    Begin with:
      s3notify demo --once                            all of it, on a local S3 server
      s3notify doctor --bucket BUCKET --region R      can it run on this bucket?
      s3notify dev --defs FOLDER                      watch the sources of FOLDER/*/defs.yaml
      s3notify explain KEY --bucket BUCKET --name SOURCE --prefix PREFIX
                                                      what happened to an object?

    Credentials come from the environment, a profile or an instance role.
    """  # noqa: D301 - click's own mark


def _dynamodb_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--dynamodb-endpoint-url", help="DynamoDB endpoint; AWS if not given."),
        click.option("--lease-table", help="DynamoDB table of commit leases, one for each bucket."),
        click.option("--records-table", help="DynamoDB table of ack chains and heartbeats."),
    ):
        command = option(command)
    return command


@main.command(short_help="Check whether a bucket and our permissions suffice.")
@click.option("--bucket", required=True, help="Bucket to check.")
@click.option("--endpoint-url", help="S3 endpoint; AWS if not given.")
@region_option("Region of bucket and tables")
@click.option(
    "--prefix",
    default="",
    help="Prefix of the temporary objects of the check; _s3notify/NAME/ if the policy allows writes only there.",
)
@click.option(
    "--commit",
    type=click.Choice(["auto", "native", "dynamodb"]),
    default="auto",
    show_default=True,
    help="The source's commit mode, as in its YAML.",
)
@_dynamodb_options
def doctor(
    *,
    bucket: str,
    endpoint_url: str | None,
    region: str,
    prefix: str,
    commit: "CommitChoice",
    records_table: str | None,
    lease_table: str | None,
    dynamodb_endpoint_url: str | None,
) -> None:
    """Check whether a bucket's store and our permissions suffice, and print how slots are committed there, and why.

    Named tables are checked too. Credentials come from the environment, a profile or an instance role. About 50
    requests; all objects that it writes are deleted again. Exit code 0 if the platform can run like this, 1 if not,
    with the reason.
    """
    from contextlib import closing

    from rich.console import Console

    from s3notify_platform.deploy import Tables, examine_tables
    from s3notify_platform.stores.config import S3Config
    from s3notify_platform.stores.probe import choose_commit, probe
    from s3notify_platform.stores.s3 import S3ObjectStore

    config = S3Config(bucket=bucket, endpoint_url=endpoint_url, region=region)
    with closing(S3ObjectStore(config, connect_seconds=5.0, attempts=3)) as store:
        found = probe(store, prefix)
    tables = examine_tables(
        Tables(records=records_table, leases=lease_table, region=region, endpoint_url=dynamodb_endpoint_url)
    )
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    console.print(_table(f"{bucket} at {endpoint_url or 'AWS S3'}", found))
    # The problems of an unusable store are the error that is printed below.
    for problem in found.problems if found.mode != "unusable" else ():
        say(f"- {problem}")
    for table, problems in tables.items():
        for problem in problems or ("is correct",):
            say(f"- {table} {problem}")
    try:
        decision = choose_commit(
            found, commit, has_lease_table=bool(lease_table), has_records_table=bool(records_table)
        )
        say(f"commit: {decision.commit} ({decision.reason})")
        say(f"records: {f'table {records_table!r}' if records_table else 'on the bucket'}")
    except S3NotifyError as error:
        say(str(error))
        sys.exit(1)
    if any(tables.values()):
        sys.exit(1)


@main.command(short_help="Create DynamoDB tables; print templates or IAM policies.")
@_dynamodb_options
@region_option("The tables' region")
@click.option(
    "--print",
    "template",
    type=click.Choice(["cloudformation", "terraform", "iam"]),
    help="Create nothing; print a template of the tables, or the least policy of each role.",
)
@click.option(
    "--role",
    type=click.Choice(["writer", "publisher", "run", "reader", "viewer", "sweep", "inlet", "outlet"]),
    help="iam: this role's policy only.",
)
@click.option("--account", help="iam: AWS account of the tables and the event queue, 12 digits.")
@click.option("--bucket", help="iam: bucket that is watched.")
@click.option("--prefix", default="", help="iam: the source's prefix.")
@click.option("--name", default="orders", show_default=True, help="iam: the source's name.")
@click.option("--platform-bucket", help="iam: bucket of the platform's own objects; default: --bucket.")
@click.option(
    "--platform-prefix", help="iam: prefix of the platform's own objects; default: _s3notify/NAME/."
)
@click.option("--keyspace", help="iam: prefix of the signals; default: keyspace/ below the platform prefix.")
@click.option("--queue-prefix", default=QUEUE_PREFIX, show_default=True, help="iam: prefix of the queue.")
@click.option("--event-queue", help="iam: name of the SQS queue that the bucket's events go to.")
def init(
    *,
    records_table: str | None,
    lease_table: str | None,
    dynamodb_endpoint_url: str | None,
    region: str,
    template: str | None,
    role: "Role | None",
    account: str | None,
    bucket: str | None,
    prefix: str,
    name: str,
    platform_bucket: str | None,
    platform_prefix: str | None,
    keyspace: str | None,
    queue_prefix: str,
    event_queue: str | None,
) -> None:
    """Create the named DynamoDB tables, or print templates of them, or IAM policies.

    Safe to repeat: an existing table is not changed, and one with another schema is refused. The platform needs no
    table unless the bucket's store lacks conditional writes, or request rates are high: see `s3notify doctor`.

    \b
    The least policy for what `s3notify dev` runs:
      s3notify init --print iam --role run --bucket BUCKET --prefix PREFIX --name SOURCE

    Roles: writer; publisher (a writer that queues); run (`s3notify dev` without inlets and outlets); reader; viewer (of
    the Delta view); sweep (checks and vacuum); inlet; outlet. With --platform-bucket the source bucket is only read.

    Name the tables in the source's `dynamodb`. The records table holds ack chains and heartbeats, and sources may share
    it. A lease table serves one bucket, and writers that use the Rust crate object_store (up to 0.12) may share it. The
    first run records the table's commit mode; later runs in another mode are refused.
    """  # noqa: D301 - click's own mark
    import json

    from s3notify_platform import deploy as provision

    tables = provision.Tables(
        records=records_table, leases=lease_table, region=region, endpoint_url=dynamodb_endpoint_url
    )
    if template != "iam" and not (records_table or lease_table):
        raise click.UsageError("name a table: --records-table, --lease-table, or both")
    if template == "iam" and not bucket:
        raise click.UsageError("--print iam needs --bucket")
    if template == "iam" and (records_table or lease_table or event_queue) and not account:
        raise click.UsageError("--print iam with a table or an event queue needs --account")
    try:
        match template:
            case None:
                for table, created in provision.create_tables(tables).items():
                    click.echo(f"table {table!r}: {'created' if created else 'exists already'}")
                return
            case "cloudformation":
                printed = provision.cloudformation(tables)
            case "terraform":
                printed = provision.terraform(tables)
            case _:
                own = platform_prefix or f"_s3notify/{name}/"
                places = provision.Places(
                    bucket=bucket or "",
                    prefix=prefix,
                    platform_bucket=platform_bucket or bucket or "",
                    platform_prefix=own,
                    keyspace_prefix=keyspace or f"{own}keyspace/",
                    tables=tables,
                    account=account,
                    queue_prefix=queue_prefix,
                    event_queue=event_queue,
                )
                policies = {str(each): provision.policy(each, places) for each in provision.ROLES}
                printed = policies[role] if role else policies
    except S3NotifyError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(printed, indent=2))


@main.command(short_help="Run a demo on a local S3 server.")
@click.option(
    "--once", is_flag=True, help="End when everything is committed; exit 0 only if the table is exact."
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(".s3notify/demo"),
    show_default=True,
    help="Folder of all its data; delete it to start over.",
)
@click.option("--port", type=int, help="Port of the Dagster UI; a free one if not given.")
@click.option(
    "--objects",
    type=click.IntRange(20, 20_000),
    default=120,
    show_default=True,
    help="Objects that it writes.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed ends in the same table.")
def demo(*, once: bool, folder: Path, port: int | None, objects: int, seed: int) -> None:
    """Run a whole pipeline on the embedded S3 server: publish objects, detect changes, commit them.

    All data stays in the folder, and a demo that was killed continues from there. Ctrl-C ends it cleanly.
    """
    from s3notify_platform.local.demo import Demo

    try:
        exact = Demo(folder, objects=objects, port=port, seed=seed).run(once=once)
    except S3NotifyError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(0 if exact else 1)


@main.command(short_help="Watch your own buckets, in Dagster.")
@click.option(
    "--defs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Folder with FOLDER/SOURCE/defs.yaml for each source; named like a Python module.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=Path(".s3notify/home"),
    show_default=True,
    help="Dagster's own state and log, its DAGSTER_HOME.",
)
@click.option(
    "--port", type=int, default=3000, show_default=True, help="Port of the Dagster UI, on loopback."
)
def dev(defs: Path, home: Path, port: int) -> None:
    """Watch your own buckets: Dagster's UI, daemon and sensors for the sources of a folder.

    A defs.yaml that cannot be loaded is shown in the UI, under Deployment. Credentials come from the environment, a
    profile or an instance role.
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


@main.command(short_help="Signal objects that others wrote.")
@click.argument("keys", nargs=-1, required=True)
@click.option("--bucket", required=True, help="Bucket that holds the keyspace.")
@click.option("--keyspace", required=True, help="Prefix of the signals, as in the source's keyspace_prefix.")
@click.option("--endpoint-url", help="S3 endpoint; AWS if not given.")
@region_option("Region of the bucket")
def signal(
    keys: tuple[str, ...], *, bucket: str, keyspace: str, endpoint_url: str | None, region: str
) -> None:
    """Signal objects KEYS, written by a program that does not signal: 1 PUT for each touched slot, 1 for the root.

    \b
    s3notify signal raw/orders/2.jsonl --bucket acme-landing --keyspace _s3notify/orders/keyspace/
    """  # noqa: D301 - click's own mark
    from s3notify_platform.protocols.keyspace import Publisher
    from s3notify_platform.stores.config import S3Config
    from s3notify_platform.stores.s3 import S3ObjectStore

    store = S3ObjectStore(S3Config(bucket=bucket, endpoint_url=endpoint_url, region=region))
    try:
        Publisher(store, prefix=keyspace).signal(keys)
    except S3NotifyError as error:
        raise click.ClickException(str(error)) from error


@main.command(short_help="Remove old commits, and files that no commit names.")
@click.option("--bucket", required=True, help="Bucket that holds the table.")
@click.option("--table", required=True, help="Prefix of the table, like _s3notify/orders/table/.")
@click.option(
    "--days", type=click.FloatRange(min=1), default=7.0, show_default=True, help="Days of history to keep."
)
@click.option("--endpoint-url", help="S3 endpoint; AWS if not given.")
@region_option("Region of the bucket")
def vacuum(*, bucket: str, table: str, days: float, endpoint_url: str | None, region: str) -> None:
    """Remove commits older than the history to keep, and files that no commit names any more.

    `s3notify rows` and the Delta view can read no further back than that. Files of the view's last version are kept;
    its log is truncated behind a checkpoint of that age.
    """
    from s3notify_platform.stores.config import S3Config
    from s3notify_platform.stores.s3 import S3ObjectStore
    from s3notify_platform.table.commit import SlotTable
    from s3notify_platform.table.layout import TableLayout
    from s3notify_platform.table.vacuum import vacuum as run_vacuum

    store = S3ObjectStore(S3Config(bucket=bucket, endpoint_url=endpoint_url, region=region))
    try:
        report = run_vacuum(SlotTable(store, TableLayout(prefix=table)), retention_seconds=days * 86_400)
    except S3NotifyError as error:
        raise click.ClickException(str(error)) from error
    click.echo(
        f"removed {report.commits_removed} commits, {report.files_removed} files and {report.log_removed} objects of "
        f"the Delta log, {report.bytes_removed} bytes; "
        f"kept {report.commits_kept} commits and {report.files_kept} files"
    )


def _table(title: str, found: "Capabilities") -> "Table":
    from rich.table import Table

    table = Table("Check", "Result", title=title, title_justify="left")
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
    table.add_row("server's clock", "unknown" if skew is None else f"{skew / 1000:+.1f} s from ours")
    table.add_row("commit mode, if auto", found.mode)
    return table


def _add_commands() -> None:
    from s3notify_platform.cli.backfill import backfill
    from s3notify_platform.cli.explain import explain
    from s3notify_platform.cli.ingest import ingest
    from s3notify_platform.cli.inlet import inlet
    from s3notify_platform.cli.quarantine import quarantine
    from s3notify_platform.cli.read import delta, history, rows
    from s3notify_platform.cli.reconcile import reconcile
    from s3notify_platform.cli.table import table
    from s3notify_platform.cli.topics import topics

    for command in (
        topics,
        inlet,
        reconcile,
        backfill,
        explain,
        ingest,
        history,
        rows,
        delta,
        quarantine,
        table,
    ):
        main.add_command(command)


_add_commands()
