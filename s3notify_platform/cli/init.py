"""`s3notify init`: DynamoDB tables; what announces a bucket's changes; templates of both; IAM policies."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from s3notify_platform.cli.common import SourcePlace, setting_option, settings_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.events import Asked, event_options, queue_on_aws, set_up_events
from s3notify_platform.cli.printing import print_json, say
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import given_of, named
from s3notify_platform.source.settings import LocationSettings, S3Settings

if TYPE_CHECKING:
    from s3notify_platform.deploy import Role


_OF_BUCKET = tuple(name for name in named(S3Settings) if name != "region")


def _check_given(template: str | None, *, table: str | None, place: str | None) -> None:
    if template == "iam":
        if not place:
            raise click.UsageError("--print iam needs the source's NAME, and its --bucket")
    elif not table:
        raise click.UsageError("name a table: --records-table, --lease-table, or both; or --events")


def _write_home(home: Path) -> None:
    """`UsageError` if a `dagster.yaml` is there that lacks lines for warm runs, with these lines."""
    from s3notify_platform.local.dagster_home import prepare_home

    found = prepare_home(home)
    if found.missing:
        instead = f", in place of its own {', '.join(found.others)}" if found.others else ""
        raise UsageError(f"{found.path} is not changed; for warm runs it needs{instead}:\n\n{found.missing}")
    say(f"{found.path} {'is written' if found.written else 'has it all already'}. Then type:")
    say(f"export DAGSTER_HOME={shlex.quote(str(found.path.parent))}; dg dev")


@command(short_help="Set up events, DynamoDB tables or a DAGSTER_HOME; print templates or policies.")
@event_options
@settings_options("records_table", "lease_table", "dynamodb_endpoint_url", "dynamodb_region")
@setting_option("region", help="Region of tables, bucket and queue; default: AWS_REGION, or the profile's.")
@click.option(
    "--print",
    "template",
    type=click.Choice(["cloudformation", "terraform", "iam"]),
    help="Create nothing; print a template of the tables or events, or the least-privilege policy of each role.",
)
@click.option(
    "--role",
    type=click.Choice(["writer", "publisher", "run", "reader", "viewer", "sweep", "inlet", "outlet"]),
    help="iam: this role's policy only.",
)
@click.option("--account", help="iam, events: AWS account of the tables and the event queue, 12 digits.")
@click.argument("name", required=False)
@setting_option("bucket", required=False, default=None)
@settings_options(
    "prefix",
    "platform_bucket",
    "platform_prefix",
    "keyspace_prefix",
    "queue_prefix",
    "known_bucket",
    "committed_tags",
    *_OF_BUCKET,
)
@click.option(
    "--event-queue",
    help="iam, events: name of the SQS queue that the bucket's events go to; default: the one in the YAML, or, for "
    "events, one that is made.",
)
@click.option(
    "--dagster-home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a dagster.yaml into this folder, by which `dg dev` alone has warm runs; a file that is there stays.",
)
def init(
    *,
    dagster_home: Path | None,
    records_table: str | None,
    lease_table: str | None,
    dynamodb_endpoint_url: str | None,
    dynamodb_region: str,
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
    """Have a bucket announce its changes, create DynamoDB tables, or print templates of both, or IAM policies.

    \b
    With events, what is written to the bucket is in the table of NAME seconds later:
      s3notify init NAME --events

    The plan is shown, and nothing is made before it is confirmed: an SQS queue that keeps messages for 14 days, its
    policy, which lets this bucket alone in, and the bucket's notification for the keys of NAME, beside those that it
    has. The YAML gets the source's inlet `sqs`, which `s3notify dev` runs. By SNS, a topic that the bucket announces
    these keys to already is subscribed to, else one is made; by EventBridge there is a rule, beside whatever else the
    bucket has. On Ceph RGW there are a topic and a notification to the source's inlet `http` (--receiver); for MinIO
    the commands are printed. Safe to repeat, also after it was killed; --remove takes out what it made. `s3notify
    doctor NAME` says whether events arrive.

    Tables: name them in the source's `dynamodb`. The platform needs none unless the bucket's store lacks conditional
    writes, or request rates are high: see `s3notify doctor`. Safe to repeat: an existing table is not changed, and one
    with another schema is refused. The records table holds ack chains and heartbeats, and sources may share it. A lease
    table serves one bucket, and writers that use the Rust crate object_store (up to 0.12) may share it. The first run
    records the table's commit mode; later runs in another mode are refused.

    \b
    The least-privilege policy for what `s3notify dev` runs; with inlets or outlets in the YAML, it needs theirs too:
      s3notify init NAME --print iam --role run

    Roles: writer; publisher (a writer that queues); run (`s3notify dev` without inlets and outlets); reader; viewer
    (another engine); sweep (checks, vacuum and compact); inlet; outlet. With --platform-bucket the source bucket is
    only read.

    \b
    In a Dagster project, a home whose runs find Spark started already (else each run starts it, 5 to 20 seconds):
      s3notify init --dagster-home ~/dagster && export DAGSTER_HOME=~/dagster && dg dev
    """  # noqa: D301 - click's own mark
    if dagster_home is not None:
        if events or template or name:
            raise click.UsageError("--dagster-home goes alone: give the others in another command")
        _write_home(dagster_home.expanduser())
        return
    if events:
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
        if not (name and places["bucket"]):
            raise click.UsageError("--events needs the source's NAME, and its --bucket")
        given = {"name": name, "region": region, **places}
        set_up_events(SourcePlace({key: value for key, value in given.items() if value is not None}), asked)
        return
    if remove or by or receiver:
        raise click.UsageError("--remove, --by and --receiver are of --events")
    from s3notify_platform import deploy as provision
    from s3notify_platform.stores.config import default_region

    source = click.get_current_context().get_parameter_source("region")
    tables = provision.Tables(
        records=records_table,
        leases=lease_table,
        region=(region if source is ParameterSource.COMMANDLINE else dynamodb_region or region)
        or default_region(),
        endpoint_url=dynamodb_endpoint_url,
    )
    _check_given(template, table=records_table or lease_table, place=name and places["bucket"])
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
            place = LocationSettings(name=str(name), **given_of(places, LocationSettings))
            places |= {"platform_prefix": place.platform_prefix, "keyspace_prefix": place.keyspace_prefix}
            tags = bool(places.pop("committed_tags"))
            queue, owner = (event_queue, account) if event_queue else queue_on_aws(name)
            granted = provision.Places(
                **{key: value for key, value in places.items() if key not in _OF_BUCKET},
                account=account or owner,
                event_queue=queue,
                tables=tables,
                tags=tags,
            )
            policies = {str(one): provision.policy(one, granted) for one in provision.ROLES}
            print_json(policies[role] if role else policies)
