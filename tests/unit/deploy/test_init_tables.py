"""Output of `s3notify init`: tables, templates, policies."""

import json
from collections import defaultdict
from dataclasses import replace

import pytest
from cfnlint.api import lint_all
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.deploy import ROLES, Places, Tables, cloudformation, policy, terraform
from s3notify_platform.source.location import Location
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.dynamodb.dynamo_table import DynamoTable
from s3notify_platform.stores.dynamodb.record_store import RECORD_TABLE
from s3notify_platform.stores.dynamodb.table_schema import TableSchema, create_table, describe
from tests.support.iam import refused

TABLES = Tables(records="records", leases="leases", region="eu-central-1")
PLACES = Places(
    bucket="landing",
    prefix="raw/",
    platform_bucket="platform",
    platform_prefix="_s3notify/orders/",
    keyspace_prefix="_s3notify/orders/keyspace/",
    tables=TABLES,
    account="123456789012",
    event_queue="arn:aws:sqs:eu-central-1:123456789012:events",
)
NAMED = ["--records-table", "records", "--lease-table", "leases"]


def run(*arguments):
    return CliRunner().invoke(main, ["init", *arguments])


@pytest.mark.usefixtures("moto_aws")
def test_init_makes_tables_and_can_be_repeated():
    """Otherwise tables would have a wrong schema, fixed capacity or no TTL, or a second `init` would fail."""
    first = run(*NAMED)
    assert first.exit_code == 0, first.output
    assert first.output.splitlines() == ["table 'records': created", "table 'leases': created"]
    records = describe(DynamoTable(DynamoConfig(table="records")))
    assert records["KeySchema"] == RECORD_TABLE.keys
    assert records["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    leases = DynamoTable(DynamoConfig(table="leases"))
    keys = [(key["AttributeName"], key["KeyType"]) for key in describe(leases)["KeySchema"]]
    assert keys == [("path", "HASH"), ("etag", "RANGE")]
    ttl = leases.client.describe_time_to_live(TableName="leases")["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "ttl")
    assert run(*NAMED).output.splitlines() == [
        "table 'records': exists already",
        "table 'leases': exists already",
    ]


@pytest.mark.usefixtures("moto_aws")
def test_init_refuses_a_table_with_another_schema():
    """Otherwise a table of another program would be used or changed."""
    other = TableSchema(partition_key="tagID")
    table = DynamoTable(DynamoConfig(table="records"))
    create_table(table, other)
    result = run("--records-table", "records")
    assert result.exit_code == 1
    assert "'records'" in result.output
    assert "has the keys tagID (S, HASH), not partition (S, HASH), key (S, RANGE)" in result.output
    assert describe(table)["KeySchema"] == other.keys


def test_the_cloudformation_template_equals_the_tables_of_init():
    """Otherwise CloudFormation would refuse the template, or make other tables than `s3notify init`."""
    result = run(*NAMED, "--print", "cloudformation")
    assert result.exit_code == 0, result.output
    # Findings by rules whose id begins with I are advice, not defects.
    assert [match for match in lint_all(result.output) if not match.rule.id.startswith("I")] == []
    template = json.loads(result.output)
    assert template == cloudformation(Tables(records="records", leases="leases"))
    tables = {r["Properties"]["TableName"]: r["Properties"] for r in template["Resources"].values()}
    assert tables["records"]["KeySchema"] == RECORD_TABLE.keys
    assert "TimeToLiveSpecification" not in tables["records"]
    assert tables["leases"]["TimeToLiveSpecification"] == {"AttributeName": "ttl", "Enabled": True}


def test_the_terraform_template_equals_the_tables_of_init():
    """Otherwise Terraform would make other tables than `s3notify init`."""
    result = run(*NAMED, "--print", "terraform")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output) == terraform(TABLES)
    tables = json.loads(result.output)["resource"]["aws_dynamodb_table"]
    assert tables["s3notify_records"] == {
        "name": "records",
        "billing_mode": "PAY_PER_REQUEST",
        "hash_key": "partition",
        "range_key": "key",
        "attribute": [{"name": "partition", "type": "S"}, {"name": "key", "type": "S"}],
    }
    assert tables["s3notify_leases"]["ttl"] == {"attribute_name": "ttl", "enabled": True}


SOURCE, OURS = "s3:::landing/raw/*", "s3:::platform/_s3notify/orders/"
RECORDS, LEASES = (f"dynamodb:eu-central-1:123456789012:table/{name}" for name in ("records", "leases"))
RESOURCES = {
    "writer": {SOURCE, "s3:::landing", f"{OURS}keyspace/*", LEASES},
    "publisher": {SOURCE, "s3:::landing", f"{OURS}keyspace/*", LEASES, RECORDS},
    "run": {SOURCE, "s3:::landing", "s3:::platform", f"{OURS}*", LEASES, RECORDS},
    "reader": {"s3:::platform", f"{OURS}*", RECORDS},
    "viewer": {
        "s3:::platform", f"{OURS}table/_delta_log/*", f"{OURS}table/data/*", f"{OURS}table/part-*",
        f"{OURS}table/_s3notify/vector/*", f"{OURS}table/_symlink_format_manifest/*", f"{OURS}derived/*",
    },
    "sweep": {"s3:::landing", "s3:::platform", f"{OURS}*", LEASES, RECORDS},
    "inlet": {f"{OURS}keyspace/*", RECORDS, "sqs:eu-central-1:123456789012:events"},
    "outlet": {RECORDS},
}  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_policies_name_exactly_the_needed_resources(role):
    """Otherwise a role would miss a permission, or get one by a wildcard."""
    granted = [statement for statement in policy(role, PLACES)["Statement"] if statement["Effect"] == "Allow"]
    assert {one["Resource"].removeprefix("arn:aws:") for one in granted} == RESOURCES[role]
    for statement in granted:
        assert statement["Action"]
        assert not any("*" in action for action in statement["Action"])


def allowed(role, places):
    statements = policy(role, places)["Statement"]
    found = defaultdict(list)
    for each in (each for each in statements if each["Effect"] == "Allow"):
        found[each["Resource"]] += each["Action"]
    return found


def test_roles_of_the_queue_may_use_it_in_a_table_or_on_a_bucket():
    """Otherwise a publisher, inlet or outlet could not use the queue, or another role could use it."""
    queue = "arn:aws:s3:::platform/_s3notify/queue/*"
    for role in ("publisher", "inlet", "outlet"):
        by_table = allowed(role, PLACES)
        assert queue not in by_table
        assert "dynamodb:UpdateItem" in by_table["arn:aws:dynamodb:eu-central-1:123456789012:table/records"]
        bare = allowed(role, replace(PLACES, tables=Tables()))
        assert bare[queue] == ["s3:DeleteObject", "s3:GetObject", "s3:PutObject"]
        assert bare["arn:aws:s3:::platform"] == ["s3:ListBucket"]
        signals = bare.get("arn:aws:s3:::platform/_s3notify/orders/keyspace/*")
        assert signals == (None if role == "outlet" else ["s3:PutObject"])
    assert "queue" not in json.dumps(allowed("writer", PLACES))


@pytest.mark.parametrize("role", ["writer", "publisher"])
@pytest.mark.parametrize("prefix", ["", "raw/", "_s3", "_s3notify/orders/"])
@pytest.mark.parametrize("own", ["_s3notify/orders/", "elsewhere/of/ours/"])
def test_writers_may_not_change_the_platforms_objects(role, prefix, own):
    """Otherwise a writer could change tables by writing their objects. The writer's own objects, signals and queue must
    stay permitted.
    """
    places = Places(
        bucket="b", prefix=prefix, platform_bucket="b", platform_prefix=own, keyspace_prefix=f"{own}keyspace/",
        tables=Tables(),
    )  # fmt: skip
    location = Location(name="orders", platform=S3Config(bucket="b"), platform_prefix=own)
    layouts = (location.layout, location.table_layout("paid"))
    keys = [
        *(layout.version(3) for layout in layouts),
        *(layout.manifest(3) for layout in layouts),
        *(layout.file(layout.pack_path("x")) for layout in layouts),
        f"{own}records/ack.x/head", f"{own}store.json", "_s3notify-known/orders",
        "_s3notify-known/orders.2epaid",
    ]  # fmt: skip
    changes = {
        (f"s3:{action}", f"arn:aws:s3:::b/{key}") for action in ("PutObject", "DeleteObject") for key in keys
    }
    granted = policy(role, places)
    assert refused(granted, changes) == changes
    signals = [f"{own}keyspace/7", f"{own}keyspace/_"]
    queue = ["_s3notify/queue/queue.orders/003-1"] if role == "publisher" else []
    needed = {("s3:PutObject", f"arn:aws:s3:::b/{key}") for key in (f"{prefix}a", *signals, *queue)}
    assert refused(granted, needed) == set()


def test_policies_without_tables_do_not_name_dynamodb():
    bare = Places(
        bucket="b",
        prefix="",
        platform_bucket="p",
        platform_prefix="o/",
        keyspace_prefix="k/",
        tables=Tables(),
    )
    assert not any("dynamodb" in json.dumps(policy(role, bare)) for role in ROLES)
    assert "arn:aws:s3:::p/k/*" in json.dumps(policy("run", bare))


def test_policies_have_the_partition_of_their_region():
    """Otherwise the policies would not work in regions of China and of the US government, where ARNs have another
    partition.
    """
    for region, partition in (("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")):
        tables = Tables(records="r", region=region)
        places = Places(
            bucket="b",
            prefix="in/",
            platform_bucket="b",
            platform_prefix="o/",
            keyspace_prefix="o/k/",
            tables=tables,
            account="1" * 12,
        )
        for statement in policy("run", places)["Statement"]:
            assert statement["Resource"].startswith(f"arn:{partition}:")
        denied = [
            s for s in policy("writer", replace(places, prefix=""))["Statement"] if s["Effect"] == "Deny"
        ]
        assert len(denied) == 2
        assert all(arn.startswith(f"arn:{partition}:") for denial in denied for arn in denial["Resource"])


def test_only_runs_of_a_source_with_tags_may_tag():
    """Otherwise tagging would fail, or other roles and sources could change tags."""
    assert not any("Tagging" in str(allowed(role, PLACES)) for role in ROLES)
    tagging = replace(PLACES, tags=True)
    for role in ROLES:
        actions = allowed(role, tagging).get("arn:aws:s3:::landing/raw/*", [])
        found = {action for action in actions if "Tagging" in action}
        wanted = {"s3:GetObjectVersionTagging", "s3:PutObjectVersionTagging"}
        assert found == (wanted if role == "run" else set())
    common = ["--print", "iam", "--bucket", "landing", "--prefix", "raw/", "--role", "run", "orders"]
    assert "Tagging" not in run(*common).output
    assert "s3:PutObjectVersionTagging" in run(*common, "--committed-tags", "a=b").output


def test_init_prints_policies():
    common = ["--print", "iam", "--bucket", "landing", "--prefix", "raw/", "orders"]
    result = run(*common)
    assert result.exit_code == 0, result.output
    assert list(json.loads(result.output)) == list(ROLES)
    result = run(*common, *NAMED, "--account", "123456789012", "--role", "writer")
    statements = json.loads(result.output)["Statement"]
    assert {s["Resource"] for s in statements if s["Effect"] == "Allow"} >= {
        "arn:aws:s3:::landing/raw/*",
        "arn:aws:s3:::landing/_s3notify/orders/keyspace/*",
    }


@pytest.mark.parametrize("role", ROLES)
def test_policies_allow_the_use_of_the_key_that_encrypts(role):
    """Otherwise S3 would refuse each object, although the policy allows access to the objects. A reader must not
    encrypt.
    """
    key = "arn:aws:kms:eu-central-1:123456789012:key/1a2b"
    common = ["--print", "iam", "--bucket", "landing", "--prefix", "raw/", "--role", role, "orders"]
    result = run(*common, "--kms-key-id", key)
    assert result.stderr == ""
    of_key = [each["Action"] for each in json.loads(result.stdout)["Statement"] if each["Resource"] == key]
    encrypts = [] if role in ("reader", "viewer") else ["kms:GenerateDataKey"]
    assert of_key == [["kms:Decrypt", *encrypts]]
    assert "kms" not in run(*common).output


def test_a_role_without_objects_needs_no_key():
    """Otherwise an outlet whose queue is in DynamoDB could decrypt all objects."""
    assert "kms" not in str(policy("outlet", replace(PLACES, kms_key="arn:aws:kms:eu-central-1:1:key/1a2b")))


def test_a_key_without_an_arn_is_named():
    """IAM accepts no alias. Otherwise the policy would silently lack the key."""
    common = ["--print", "iam", "--bucket", "landing", "--prefix", "raw/", "orders"]
    for key in ("alias/platform", "arn:aws:kms:eu-central-1:123456789012:alias/platform", "1a2b"):
        result = run(*common, "--kms-key-id", key)
        assert result.exit_code == 0, result.output
        assert "kms" not in result.stdout
        assert repr(key) in result.stderr
        assert "kms:GenerateDataKey" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give --events, or name a table"),
        (["--print", "terraform"], "name a table"),
        (["--print", "iam", "orders"], "--bucket"),
        (["--print", "iam", "orders", "--bucket", "b", "--lease-table", "t"], "account"),
        (["--print", "iam", "orders", "--bucket", "b", "--event-queue", "q"], "account"),
        (["--print", "iam", "orders", "--bucket", "b", "--prefix", "a*/"], "have a special meaning"),
        (["--print", "iam", "orders", "--bucket", "b", "--queue-prefix", "a?/"], "have a special meaning"),
    ],
)
def test_init_reports_missing_arguments(arguments, reason):
    """The error must be found before any table is made, and before a useless policy is printed."""
    result = run(*arguments)
    assert result.exit_code != 0
    assert reason in result.output


def test_runs_and_sweeps_may_write_the_records_of_tables():
    """Without the right, a run could not write its table's record to `known_bucket`. With a records table, a run does
    not need this right, so the right must not be granted.
    """
    bare = replace(PLACES, tables=Tables())
    for known in ("orders", "orders.2e*"):
        arn = f"arn:aws:s3:::platform/_s3notify-known/{known}"
        assert allowed("run", bare)[arn] == ["s3:GetObject", "s3:PutObject"]
        assert allowed("sweep", bare)[arn] == ["s3:GetObject", "s3:PutObject"]
        assert allowed("reader", bare)[arn] == ["s3:GetObject"]
        assert not any("known" in resource for resource in allowed("run", PLACES))
        apart = allowed("run", replace(bare, known_bucket="vault"))
        assert apart[f"arn:aws:s3:::vault/_s3notify-known/platform.2f{known}"]
        assert arn not in apart
