"""`s3notify`: the commands. Each imports what it needs when it runs, so that `--help` is quick."""

import sys
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from s3notify_platform.cli import (
    erase,
    explain,
    ingest,
    inlet,
    quarantine,
    reconcile,
    remove,
    schema,
    status,
    table,
    tag,
    topics,
    units,
    warm,
)
from s3notify_platform.cli.common import (
    BucketPlace,
    SourcePlace,
    bucket_options,
    dynamodb_endpoint_option,
    json_option,
    key_options,
    options,
    options_as,
    region_option,
    setting_option,
    slot_count_option,
)
from s3notify_platform.cli.configured import configured, problem_of_topic, tables_region
from s3notify_platform.cli.ending import interrupt_on_signals, leave
from s3notify_platform.cli.printing import print_json, print_table, printable, say, say_traceback, shown
from s3notify_platform.cli.services import ServiceGroup
from s3notify_platform.errors import S3NotifyError, UsageError
from s3notify_platform.extras import remedy
from s3notify_platform.ingest.settings import DEFS_VARIABLE

if TYPE_CHECKING:
    from s3notify_platform.deploy import Role
    from s3notify_platform.stores.probe import Capabilities, CommitChoice


class _Commands(ServiceGroup):
    """All commands. Errors of this package end them with their message, and exit code 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """See `click.Group`."""
        try:
            return super().invoke(ctx)
        except S3NotifyError as error:
            raise click.ClickException(printable(error)) from error
        except ModuleNotFoundError as error:
            if (text := remedy(error)) is None:
                raise
            raise click.ClickException(text) from error
        except click.ClickException as error:
            vars(error)["message"] = printable(error.message)  # of the same class, which says how it is shown
            raise


@click.group(cls=_Commands, direction="outlet", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Know what changed in a bucket, and turn exactly that into committed tables.

    \b
    Begin with:
      s3notify demo --once          all of it, on a local S3 server
      s3notify doctor SOURCE        can it run on this source's bucket?
      s3notify dev                  watch the sources of defs/*/defs.yaml
      s3notify status               where do the sources stand?
      s3notify explain KEY          what happened to an object?

    Commands find a source in the YAML of the folder `defs` (or --defs, or S3NOTIFY_DEFS), and need no other option that
    is called required; options on the command line override it. Without YAML, name the source and give its --bucket.
    Credentials are those that the YAML names, else come from the environment, a profile or an instance role.

    Exit code 0: done. 1: an error, whose message says what to do, or the answer is no. 2: the command line is wrong.
    """  # noqa: D301 - click's own mark


def run() -> None:
    """The commands as a program: `main`, which then ends the process."""
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except OSError as error:  # the machine's: a full disk, a folder that may not be written
        say(f"Error: {error}", err=True)
        code = 1
    except BaseException as error:  # noqa: BLE001 - shown as Python would
        say_traceback(error)
        code = 1
    leave(code if isinstance(code, int) else int(code is not None))


_tables_options = options(
    setting_option("records_table"), setting_option("lease_table"), dynamodb_endpoint_option
)


@main.command(short_help="Check whether a bucket and our permissions suffice.")
@options_as(BucketPlace, bucket_options)
@click.argument("name", required=False)
@setting_option("platform_bucket")
@setting_option("platform_prefix")
@setting_option("queue_prefix")
@setting_option("known_bucket")
@slot_count_option
@setting_option("commit", type=click.Choice(["auto", "native", "dynamodb"]))
@setting_option("committed_tags")
@_tables_options
@json_option
def doctor(
    *,
    place: BucketPlace,
    name: str | None,
    platform_bucket: str | None,
    platform_prefix: str,
    commit: "CommitChoice",
    committed_tags: str,
    records_table: str | None,
    lease_table: str | None,
    dynamodb_endpoint_url: str | None,
    as_json: bool,
    **queue: Any,
) -> None:
    """Check whether a bucket's store and our permissions suffice, and print how slots are committed there, and why.

    What it writes is below the platform prefix of the source NAME, else below .s3notify-probe-…, and is deleted again.
    Named tables, and whether the topic of NAME is for this source, are checked too. Before all that, the YAML of its
    sources is: keys, types, formats, schema, cron. About 50 requests. Exit code 0 if the platform can run like this, 1
    if not, with the reason.
    """
    from contextlib import closing

    from s3notify_platform.deploy import Tables, examine_tables
    from s3notify_platform.stores.probe import choose_commit, probe
    from s3notify_platform.stores.s3 import S3ObjectStore
    from s3notify_platform.stores.s3.tags import ObjectTags, tags_of

    _check_sources()
    platform = replace(place.s3(), bucket=platform_bucket or place.bucket)
    prefix = platform_prefix or (f"_s3notify/{name}/" if name else "")
    with closing(S3ObjectStore(platform, connect_seconds=5.0, attempts=3)) as store:
        asked = store.endpoint_url
        found = probe(store, prefix)
    tables = examine_tables(
        Tables(
            records=records_table,
            leases=lease_table,
            region=tables_region(place.region),
            endpoint_url=dynamodb_endpoint_url,
        )
    )
    decision, refusal = None, ""
    try:
        decision = choose_commit(
            found, commit, has_lease_table=bool(lease_table), has_records_table=bool(records_table)
        )
        if tags_of(committed_tags):
            ObjectTags(place.s3()).check_versioned()
        refusal = problem_of_topic(
            name if not any(tables.values()) else None,
            platform=platform,
            platform_prefix=platform_prefix,
            records_table=records_table,
            dynamodb_endpoint_url=dynamodb_endpoint_url,
            **queue,
        )
    except S3NotifyError as error:
        refusal = str(error)
    if as_json:
        document = {"bucket": platform.bucket, "endpoint": asked, "checks": asdict(found), "tables": tables}
        print_json(
            document
            | {
                "commit": decision and decision.commit,
                "reason": decision and decision.reason,
                "refused": refusal,
            }
        )
    else:
        _print_capabilities(f"{platform.bucket} at {asked}", found)
        # The problems of an unusable store are the error that is printed below.
        for problem in found.problems if found.mode != "unusable" else ():
            say(f"- {problem}")
        for table_name, problems in tables.items():
            for problem in problems or ("is correct",):
                say(f"- {table_name} {problem}")
        if decision:
            say(f"commit: {decision.commit} ({decision.reason})")
            say(f"records: {f'table {records_table!r}' if records_table else 'on the bucket'}")
        if refusal:
            say(refusal)
    if refusal or any(tables.values()):
        sys.exit(1)


@main.command(short_help="Create DynamoDB tables; print templates or IAM policies.")
@_tables_options
@region_option("The tables' region")
@click.option(
    "--print",
    "template",
    type=click.Choice(["cloudformation", "terraform", "iam"]),
    help="Create nothing; print a template of the tables, or the least-privilege policy of each role.",
)
@click.option(
    "--role",
    type=click.Choice(["writer", "publisher", "run", "reader", "viewer", "sweep", "inlet", "outlet"]),
    help="iam: this role's policy only.",
)
@click.option("--account", help="iam: AWS account of the tables and the event queue, 12 digits.")
@click.argument("name", required=False)
@setting_option("bucket", required=False, default=None)
@setting_option("prefix")
@setting_option("platform_bucket")
@setting_option("platform_prefix")
@setting_option("keyspace_prefix")
@setting_option("queue_prefix")
@setting_option("known_bucket")
@setting_option("committed_tags")
@click.option("--event-queue", help="iam: name of the SQS queue that the bucket's events go to.")
def init(
    *,
    records_table: str | None,
    lease_table: str | None,
    dynamodb_endpoint_url: str | None,
    region: str,
    template: str | None,
    role: "Role | None",
    name: str | None,
    **places: Any,
) -> None:
    """Create the named DynamoDB tables, or print templates of them, or IAM policies.

    Safe to repeat: an existing table is not changed, and one with another schema is refused. The platform needs no
    table unless the bucket's store lacks conditional writes, or request rates are high: see `s3notify doctor`.

    \b
    The least-privilege policy for what `s3notify dev` runs; with inlets or outlets in the YAML, it needs theirs too:
      s3notify init NAME --print iam --role run

    Roles: writer; publisher (a writer that queues); run (`s3notify dev` without inlets and outlets); reader; viewer (of
    the Delta view); sweep (checks and vacuum); inlet; outlet. With --platform-bucket the source bucket is only read.

    Name the tables in the source's `dynamodb`. The records table holds ack chains and heartbeats, and sources may share
    it. A lease table serves one bucket, and writers that use the Rust crate object_store (up to 0.12) may share it. The
    first run records the table's commit mode; later runs in another mode are refused.
    """  # noqa: D301 - click's own mark
    from s3notify_platform import deploy as provision

    tables = provision.Tables(
        records=records_table,
        leases=lease_table,
        region=tables_region(region),
        endpoint_url=dynamodb_endpoint_url,
    )
    if template != "iam" and not (records_table or lease_table):
        raise click.UsageError("name a table: --records-table, --lease-table, or both")
    if template == "iam" and not (name and places["bucket"]):
        raise click.UsageError("--print iam needs the source's NAME, and its --bucket")
    match template:
        case None:
            for each, created in provision.create_tables(tables).items():
                say(f"table {each!r}: {'created' if created else 'exists already'}")
        case "cloudformation":
            print_json(provision.cloudformation(tables))
        case "terraform":
            print_json(provision.terraform(tables))
        case _:
            places["platform_bucket"] = places["platform_bucket"] or places["bucket"]
            places["platform_prefix"] = own = places["platform_prefix"] or f"_s3notify/{name}/"
            places["keyspace_prefix"] = places["keyspace_prefix"] or f"{own}keyspace/"
            tags = bool(places.pop("committed_tags"))
            granted = provision.Places(**places, tables=tables, tags=tags)
            policies = {str(one): provision.policy(one, granted) for one in provision.ROLES}
            print_json(policies[role] if role else policies)


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
@click.option(
    "--port", type=click.IntRange(1, 65_535), help="Port of the Dagster UI; a free one if not given."
)
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

    All data stays in the folder, and a demo that was killed continues from there. Ctrl-C ends it cleanly, with exit
    code 0: it says what is not committed yet.
    """
    from s3notify_platform.local.demo import Demo

    try:
        with interrupt_on_signals():
            well = Demo(folder, objects=objects, port=port, seed=seed).run(once=once)
    except KeyboardInterrupt:  # while it started, or checked
        say("stopped; the same command goes on from here")
        well = not once
    sys.exit(0 if well else 1)


@main.command(short_help="Watch your own buckets, in Dagster.")
@click.option(
    "--defs",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar=DEFS_VARIABLE,
    default=Path("defs"),
    show_default=True,
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
    "--port",
    type=click.IntRange(1, 65_535),
    default=3000,
    show_default=True,
    help="Port of the Dagster UI, on loopback.",
)
def dev(defs: Path, home: Path, port: int) -> None:
    """Watch your own buckets: Dagster's UI, daemon and sensors for the sources of a folder.

    A defs.yaml that cannot be loaded is said here, and shown in the UI, under Deployment: correct it, and reload there.
    Credentials come from the environment, a profile or an instance role.
    """
    from s3notify_platform.local.dagster_dev import DagsterDev, definitions_problem
    from s3notify_platform.local.java import java_environment
    from s3notify_platform.local.project import FIRST_SOURCE, sources_of

    environment = {DEFS_VARIABLE: str(defs.resolve()), **java_environment()}
    try:
        if not sources_of(str(defs)):  # what Dagster alone loads, a component of another type, may be there
            say(f"{defs}: {FIRST_SOURCE}", err=True)
    except UsageError as error:  # the UI shows it too, and reloads the file when it is correct
        say(f"Error: {error}", err=True)
    with (
        suppress(KeyboardInterrupt),
        interrupt_on_signals(),
        DagsterDev(home, port=port, environment=environment) as dagster,
    ):
        if problem := definitions_problem(dagster.environment()):
            say(f"Error: {problem}", err=True)
        dagster.wait_ready()
        say(f"Dagster UI at {dagster.url}, log in {dagster.log}; Ctrl-C ends it")
        dagster.wait()


@main.command(short_help="Signal objects that others wrote.")
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
@key_options
@setting_option("prefix")
def signal(keys: tuple[str, ...], *, place: SourcePlace, prefix: str) -> None:
    """Signal objects KEY…, written by a program that does not signal: 1 PUT for each touched slot, 1 for the root.

    Before that, 2 GETs and a HEAD: keys outside of the source's prefix are refused, and so is a source that has
    neither a table nor signals, unless it is in the YAML.

    \b
    s3notify signal raw/orders/2.jsonl
    s3notify signal raw/orders/2.jsonl --bucket acme-landing --name orders
    """  # noqa: D301 - click's own mark
    from s3notify_platform.slots import slot_of

    location = place.location()
    identity = location.open_table().known.identity
    if identity is None and not configured() and not location.is_begun():
        location.check_exists()
    wanted = identity.prefix if identity else prefix
    if outside := [key for key in keys if not key.startswith(wanted)]:
        raise click.UsageError(f"{shown(outside[0])}: source {place.name!r} reads keys below {wanted!r}")
    publisher = location.signals()
    publisher.signal(keys, queued=())
    slots = sorted({slot_of(key, location.slots) for key in keys})
    say(f"signalled {len({*keys})} objects: the root and slots {','.join(map(str, slots))} of {place.name!r}")


def _check_sources() -> None:
    """`UsageError` for what Dagster or a run would refuse of the sources' YAML."""
    try:
        for source in configured():
            source.check()
    except ModuleNotFoundError as error:  # of publishers, which read nothing
        if (text := remedy(error)) is None:
            raise
        say(f"formats and schemas of the YAML are not checked: {text}", err=True)


def _print_capabilities(title: str, found: "Capabilities") -> None:
    from rich.text import Text

    yes, no = Text("yes", style="green"), Text("no", style="red")
    holds = {name: value for name, value in asdict(found).items() if isinstance(value, bool)}
    rows: list[tuple[str, object]] = [
        (name.replace("_", " "), yes if value else no) for name, value in holds.items()
    ]
    skew = found.clock_skew_ms
    rows.append(("server's clock", "unknown" if skew is None else f"{skew / 1000:+.1f} s from ours"))
    rows.append(("commit mode, if auto", found.mode))
    print_table(("Check", "Result"), rows, title=title)


for _command in (
    topics.topics,
    inlet.inlet,
    reconcile.reconcile,
    quarantine.backfill,
    explain.explain,
    erase.erase,
    status.status,
    ingest.ingest,
    table.history,
    table.rows,
    table.delta,
    table.vacuum,
    quarantine.quarantine,
    table.table,
    remove.remove,
    schema.schema,
    tag.tag,
    warm.warm,
    warm.archive,
    units.units,
):
    main.add_command(_command)
