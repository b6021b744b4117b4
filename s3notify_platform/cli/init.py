"""`s3notify init`: DynamoDB tables; templates of them, and IAM policies."""

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from s3notify_platform.cli.common import setting_option, settings_options
from s3notify_platform.cli.configured import command
from s3notify_platform.cli.printing import print_json, say
from s3notify_platform.kernel.setting import given_of
from s3notify_platform.source.settings import LocationSettings

if TYPE_CHECKING:
    from s3notify_platform.deploy import Role


@command(short_help="Create DynamoDB tables; print templates or IAM policies.")
@settings_options("records_table", "lease_table", "dynamodb_endpoint_url", "dynamodb_region")
@setting_option("region", help="The tables' region; default: AWS_REGION, or the profile's.")
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
@settings_options(
    "prefix",
    "platform_bucket",
    "platform_prefix",
    "keyspace_prefix",
    "queue_prefix",
    "known_bucket",
    "committed_tags",
)
@click.option("--event-queue", help="iam: name of the SQS queue that the bucket's events go to.")
def init(
    *,
    records_table: str | None,
    lease_table: str | None,
    dynamodb_endpoint_url: str | None,
    dynamodb_region: str,
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

    Roles: writer; publisher (a writer that queues); run (`s3notify dev` without inlets and outlets); reader; viewer
    (another engine); sweep (checks, vacuum and compact); inlet; outlet. With --platform-bucket the source bucket is
    only read.

    Name the tables in the source's `dynamodb`. The records table holds ack chains and heartbeats, and sources may share
    it. A lease table serves one bucket, and writers that use the Rust crate object_store (up to 0.12) may share it. The
    first run records the table's commit mode; later runs in another mode are refused.
    """  # noqa: D301 - click's own mark
    from s3notify_platform import deploy as provision
    from s3notify_platform.stores.config import default_region

    given = click.get_current_context().get_parameter_source("region")
    tables = provision.Tables(
        records=records_table,
        leases=lease_table,
        region=(region if given is ParameterSource.COMMANDLINE else dynamodb_region or region)
        or default_region(),
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
            place = LocationSettings(name=str(name), **given_of(places, LocationSettings))
            places |= {"platform_prefix": place.platform_prefix, "keyspace_prefix": place.keyspace_prefix}
            tags = bool(places.pop("committed_tags"))
            granted = provision.Places(**places, tables=tables, tags=tags)
            policies = {str(one): provision.policy(one, granted) for one in provision.ROLES}
            print_json(policies[role] if role else policies)
