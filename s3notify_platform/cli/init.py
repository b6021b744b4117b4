"""`s3notify init`: events of a bucket, DynamoDB tables, templates of both, and IAM policies."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from s3notify_platform.cli.common import SourcePlace
from s3notify_platform.cli.configured import check_shared, command
from s3notify_platform.cli.events import Asked, event_options, queue_on_aws, set_up_events
from s3notify_platform.cli.help_pages import CONNECTION, EVENTS, SettingOption
from s3notify_platform.cli.printing import print_json, say, say_wrapped
from s3notify_platform.cli.setting_options import setting_option, settings_options
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import given_of, named
from s3notify_platform.source.bucket_settings import access_to_tables
from s3notify_platform.source.settings import DYNAMODB, LocationSettings, S3Settings

if TYPE_CHECKING:
    from s3notify_platform.deploy import Role


_OF_BUCKET = tuple(name for name in named(S3Settings) if name != "region")
_CREDENTIALS = DYNAMODB.keys() - {"region", "endpoint_url"}
_KEY_ARN = re.compile(r"arn:[a-z-]+:kms:[a-z0-9-]+:\d{12}:key/[A-Za-z0-9-]+")


def _check_given(template: str | None, *, table: str | None, place: str | None) -> None:
    if template == "iam":
        if not place:
            raise click.UsageError("--print iam needs the NAME of the source, and --bucket")
    elif not table:
        raise click.UsageError("give --events, or name a table: --records-table, --lease-table, or both")


def _check_events(template: str | None, role: str | None, *, place: str | None) -> None:
    if template == "iam" or role:
        raise click.UsageError("--print iam and --role take no --events: give --events in another command")
    if not place:
        raise click.UsageError("--events needs the NAME of the source, and --bucket")


def _table_access(places: dict[str, Any], region: str) -> tuple[dict[str, Any], list[str]]:
    """The access to the DynamoDB tables, and the settings of `dynamodb` that this access uses. Removes all settings of
    `dynamodb` from `places`.

    Region and credentials on the command line replace the values in `dynamodb`. So an administrator can create tables
    for runs that may not create tables.
    """
    source = click.get_current_context().get_parameter_source
    given = {"region": region, **places}
    typed = {name: value for name, value in given.items() if source(name) is ParameterSource.COMMANDLINE}
    replaced = typed.keys() & {"region"}
    if not typed.keys() & {DYNAMODB[name] for name in _CREDENTIALS} and typed.keys() & _CREDENTIALS:
        replaced |= _CREDENTIALS
    found = {flat: places.pop(flat) for flat in DYNAMODB.values()}
    used = [flat for name, flat in DYNAMODB.items() if name not in replaced]
    access = access_to_tables({"region": region} | {name: found[name] for name in used})
    return access | {name: typed[name] for name in replaced & typed.keys()}, used


def _write_home(home: Path) -> None:
    """Writes `dagster.yaml`. If the file exists and lacks lines for warm runs: `UsageError` with the missing lines."""
    from s3notify_platform.local.dagster_home import prepare_home

    found = prepare_home(home)
    if found.missing:
        instead = f", in place of its own {', '.join(found.others)}" if found.others else ""
        raise UsageError(f"{found.path} is not changed; for warm runs it needs{instead}:\n\n{found.missing}")
    say_wrapped(f"{found.path} {'is written' if found.written else 'has all lines already'}. Then type:")
    say(f"export DAGSTER_HOME={shlex.quote(str(found.path.parent))}; dg dev")


@command(short_help="Set up events, tables, a DAGSTER_HOME; print IAM policies.")
@click.argument("name", required=False)
@event_options
@click.option(
    "--print",
    "template",
    type=click.Choice(["cloudformation", "terraform", "iam"]),
    help="Create nothing; print a template of the events or tables, or the least-privilege policy of each role.",
)
@click.option(
    "--role",
    type=click.Choice(["writer", "publisher", "run", "reader", "viewer", "sweep", "inlet", "outlet"]),
    metavar="ROLE",
    help="With --print iam: only the policy of this role.",
)
@click.option("--account", help="AWS account of the tables and the event queue, 12 digits.")
@settings_options(
    "records_table",
    "lease_table",
    *DYNAMODB.values(),
    shown=("records_table", "lease_table"),
)
@setting_option(
    "region",
    heading=CONNECTION,
    help="Region of tables, bucket and queue; default: AWS_REGION, or the profile's.",
)
@setting_option("bucket", required=False, default=None)
@settings_options(
    "prefix",
    "platform_bucket",
    "platform_prefix",
    "keyspace_prefix",
    "queue_prefix",
    "known_bucket",
    "signals",
    "committed_tags",
    *_OF_BUCKET,
)
@click.option(
    "--event-queue",
    cls=SettingOption,
    heading=EVENTS,
    help="Name of the SQS queue for the bucket's events; default: the queue in the YAML, else a new one.",
)
@click.option(
    "--dagster-home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a dagster.yaml into this folder. With it, `dg dev` has warm runs by itself. An existing file stays.",
)
def init(
    *,
    dagster_home: Path | None,
    records_table: str | None,
    lease_table: str | None,
    region: str,
    template: str | None,
    role: "Role | None",
    name: str | None,
    account: str | None,
    event_queue: str | None,
    events: bool,
    by: Any,
    receiver: str | None,
    queue_endpoint_url: str | None,
    bucket_account: str | None,
    remove: bool,
    yes: bool,
    **places: Any,
) -> None:
    """Set up the events of a bucket or DynamoDB tables, or print templates and IAM policies.

    \b
    Events: new objects are in the table of NAME within seconds.
      s3notify init NAME --events

    The command shows a plan and asks before it changes anything. On AWS, the command creates an SQS queue that keeps
    messages for 14 days, and a notification of the bucket for the keys of NAME. The queue's policy lets only this
    bucket send. Other notifications stay. The YAML gets an inlet `sqs`, which `s3notify dev` runs. With --by sns, the
    queue subscribes to a topic that announces these keys already, else to a new topic; with --by eventbridge, a rule is
    created. On Ceph RGW, the command creates a topic and a notification for the source's inlet `http` (--receiver). For
    MinIO, the command prints MinIO's own commands. Safe to repeat, and to kill. --remove deletes everything that
    --events created, except the bucket's switch for EventBridge, which others may use. `s3notify doctor NAME` checks
    that events arrive.

    \b
    DynamoDB tables, if `s3notify doctor` asks for them, or for high rates.
      s3notify init --records-table TABLE --lease-table TABLE

    Name the tables in the source's `dynamodb`, too. The command uses the credentials that `dynamodb` names, unless the
    command line names others (--profile). An existing table is never changed; a table with another schema is
    refused. Sources may share a records table. A lease table serves one bucket; writers with the Rust crate
    object_store (up to 0.12) may share it. The first run records the commit mode of a table; later runs with another
    mode are refused.

    \b
    Permissions: the least-privilege policy for `s3notify dev`.
      s3notify init NAME --print iam --role run

    Roles: run (`s3notify dev`); inlet and outlet (also needed if the YAML has them); publisher (writes objects and
    queues changes); writer (writes objects and signals them); reader (rows, quarantine and signals); viewer (another
    engine that reads the table); sweep (checks, vacuum and compact). With --platform-bucket, the bucket of the objects
    is only read.

    \b
    A DAGSTER_HOME with warm runs (else each run starts Spark, 5 to 20 s).
      s3notify init --dagster-home ~/dagster
    """  # noqa: D301 - click's own mark
    if dagster_home is not None:
        # If the project has only one source, its name is the default of NAME.
        of_name = click.get_current_context().get_parameter_source("name")
        if events or template or of_name is ParameterSource.COMMANDLINE:
            raise click.UsageError("--dagster-home takes no other options: give those in another command")
        _write_home(dagster_home.expanduser())
        return
    access, used = _table_access(places, region)
    if events:
        _check_events(template, role, place=name and places["bucket"])
        asked = Asked(
            by=by,
            receiver=receiver,
            queue_endpoint_url=queue_endpoint_url,
            bucket_account=bucket_account,
            remove=remove,
            yes=yes,
            account=account,
            event_queue=event_queue,
            template=template,
        )
        given = {"name": name, "region": region, **places}
        set_up_events(SourcePlace({key: value for key, value in given.items() if value is not None}), asked)
        return
    if remove or by or receiver:
        raise click.UsageError("--remove, --by and --receiver need --events")
    from s3notify_platform import deploy as provision
    from s3notify_platform.stores.config import default_region

    tables = provision.Tables(records=records_table, leases=lease_table, **access)
    _check_given(template, table=records_table or lease_table, place=name and places["bucket"])
    match template:
        case None:
            check_shared(*used)
            for each, created in provision.create_tables(tables).items():
                say_wrapped(f"table {each!r}: {'created' if created else 'exists already'}")
        case "cloudformation":
            print_json(provision.cloudformation(tables))
        case "terraform":
            print_json(provision.terraform(tables))
        case _:
            places["platform_bucket"] = places["platform_bucket"] or places["bucket"]
            place = LocationSettings(name=str(name), **given_of(places, LocationSettings))
            places |= {"platform_prefix": place.platform_prefix, "keyspace_prefix": place.keyspace_prefix}
            tags = bool(places.pop("committed_tags"))
            queue = (region or default_region(), account, event_queue) if event_queue else queue_on_aws(name)
            key = places["kms_key_id"]
            if key and not _KEY_ARN.fullmatch(key):
                say_wrapped(
                    f"the policies lack the KMS key {key!r}, because IAM needs its ARN: give the ARN as kms_key_id, "
                    "or allow kms:Decrypt and kms:GenerateDataKey on this key",
                    err=True,
                )
                key = None
            granted = provision.Places(
                **{key: value for key, value in places.items() if key not in _OF_BUCKET},
                account=account or (queue and queue[1]),
                event_queue=queue and provision.regional_arn("sqs", *queue),
                tables=tables,
                tags=tags,
                kms_key=key,
            )
            policies = {str(one): provision.policy(one, granted) for one in provision.ROLES}
            print_json(policies[role] if role else policies)
