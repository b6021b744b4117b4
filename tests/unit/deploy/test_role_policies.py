"""The policy of each role, simulated: the role's permissions on every kind of object, in every layout of buckets and
prefixes.
"""

from dataclasses import replace
from itertools import product

import pytest

from s3notify_platform.deploy import ROLES, Places, Tables, policy
from s3notify_platform.source.location import Location
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.table.known import KNOWN
from s3notify_platform.table.own_objects import own_prefixes
from tests.support.iam import ACCOUNT, allowed, unused

ACTIONS = {"P": "s3:PutObject", "D": "s3:DeleteObject", "G": "s3:GetObject"}

EXPECTED = {
    "writer": {"source": "PDG", "signals": "P"},
    "publisher": {"source": "PDG", "signals": "P", "queue": "PDG"},
    "run": {
        "source": "G", "signals": "PG", "delta": "PDG", "own": "PDG", "derived": "PDG", "state": "PDG", "queue": "PDG",
        "known": "PG",
    },
    "reader": {"signals": "G", "delta": "G", "own": "G", "derived": "G", "state": "G", "known": "G"},
    "viewer": {"delta": "G", "derived": "G"},
    "sweep": {
        "signals": "P", "delta": "PDG", "own": "PDG", "derived": "PDG", "state": "PDG", "queue": "G", "known": "PG",
    },
    "inlet": {"signals": "P", "queue": "PDG"},
    "outlet": {"queue": "PDG"},
}  # fmt: skip
"""Expected actions by role and kind of object. Only writers change the source's objects, and no writer changes the
platform's objects.
"""

BUCKETS = {
    "one": ("b", "b", None),
    "platform apart": ("b", "p", None),
    "known apart": ("b", "b", "k"),
    "three": ("b", "p", "k"),
    "known in the source's": ("b", "p", "b"),
    "known named where it is": ("b", "b", "b"),
}


PLATFORM = ("_s3notify/orders/", "_s3notify/shop/orders/", "of/ours/")


def layouts(platform_prefixes=PLATFORM):
    for buckets, prefix, own, (signals, queue), table in product(
        BUCKETS, ("", "raw/", "_s3"), platform_prefixes,
        (("", "_s3notify/queue/"), ("signals/", "queues/")), (None, "records"),
    ):  # fmt: skip
        bucket, platform, known = BUCKETS[buckets]
        yield Places(
            bucket=bucket, prefix=prefix, platform_bucket=platform, platform_prefix=own,
            keyspace_prefix=signals or f"{own}keyspace/", queue_prefix=queue, known_bucket=known,
            tables=Tables(records=table, region="us-east-1"), account=ACCOUNT,
        )  # fmt: skip


def objects(places):
    """Kind, bucket and key of each kind of object, as the code names them."""
    location = Location(
        name="orders",
        platform=S3Config(bucket=places.platform_bucket),
        platform_prefix=places.platform_prefix,
        keyspace_prefix=places.keyspace_prefix,
        queue_prefix=places.queue_prefix,
        known_bucket=places.known_bucket,
        records_table=DynamoConfig(table=places.tables.records) if places.tables.records else None,
    )
    own, layout, platform = places.platform_prefix, location.layout, places.platform_bucket
    yield "source", places.bucket, f"{places.prefix}2026/a.jsonl"
    for key in ("7", "_"):
        yield "signals", platform, f"{places.keyspace_prefix}{key}"
    for key in (
        layout.version(3),
        layout.checkpoint(3),
        layout.last_checkpoint,
        layout.file(layout.pack_path("x")),
        f"{layout.prefix}part-00000-x.snappy.parquet",
        f"{layout.vectors}x",
        layout.symlinks,
    ):
        yield "delta", platform, key
    for key in (
        layout.manifest(3),
        layout.state("x"),
        layout.file(layout.reject_path("x")),
        layout.file(layout.changes_path(3)),
        layout.staged_version(3),
        layout.cut(3),
    ):
        yield "own", platform, key
    derived = location.table_layout("paid")
    for key in (derived.version(3), derived.file(derived.pack_path("x"))):
        yield "derived", platform, key
    for key in ("records/ack.x/head", "store.json", ".s3notify-probe-1/match"):
        yield "state", platform, f"{own}{key}"
    if not places.tables.records:
        yield "queue", platform, f"{places.queue_prefix}queue.orders/003-1"
        known_bucket = places.known_bucket or platform
        for asset in (None, "paid"):
            known = location.known(asset)
            yield "known", known_bucket, known.records._path(KNOWN, known.key)


def elsewhere(role, places):
    """Objects that no role of this source may change: other sources' objects, and keys below unused prefixes."""
    for bucket in {places.bucket, places.platform_bucket, places.known_bucket or places.bucket}:
        for key in (
            "table/_delta_log/1",
            "derived/x/data/1",
            "records/ack.x/head",
            "store.json",
        ):
            yield bucket, f"_s3notify/clicks/{key}"
        if role == "writer":
            yield bucket, "_s3notify/dev/queue/queue.orders/003-1"
        yield bucket, "_s3notify-known/clicks"
        yield bucket, "_s3notify-known/p.2fclicks"
    if places.tables.records:
        yield places.platform_bucket, f"{places.queue_prefix}queue.orders/003-1"


@pytest.mark.parametrize("role", ROLES)
def test_each_role_has_exactly_the_needed_permissions(role):
    """Otherwise a role would lack a permission, or have an unnecessary permission. Runs may also read all keys below
    the source's prefix.
    """
    writes = role in ("writer", "publisher")
    for places in layouts():
        granted = policy(role, places)
        nested = places.keyspace_prefix.startswith(places.platform_prefix)
        for kind, bucket, key in objects(places):
            expected = set(EXPECTED[role].get(kind, ""))
            if kind == "signals" and nested and {"P", "D"} <= set(EXPECTED[role].get("own", "")):
                # The signals are below the platform's prefix, and the role may read, write and delete everything there.
                expected = set("PDG")
            if role == "run" and bucket == places.bucket and key.startswith(places.prefix):
                expected |= {"G"}
            found = {
                letter
                for letter, action in ACTIONS.items()
                if allowed(granted, (action, f"arn:aws:s3:::{bucket}/{key}"))
            }
            assert found == expected, (role, kind, places)
        for bucket, key in elsewhere(role, places):
            for letter in "PDG" if writes else "PD":
                need = (ACTIONS[letter], f"arn:aws:s3:::{bucket}/{key}")
                assert not allowed(granted, need), (role, need, places)


IN_TABLE = {
    "writer": {},
    "publisher": {"queue": "GPDQU"},
    "run": {"queue": "GPDQU", "chains": "GPDQ", "known": "GP"},
    "reader": {"known": "G"},
    "viewer": {},
    "sweep": {"queue": "GQ", "chains": "GPDQ", "known": "GP"},
    "inlet": {"queue": "GPDQU"},
    "outlet": {"queue": "GPDQU"},
}
"""Expected actions by role and kind of partition, if sources share a records table."""


@pytest.mark.parametrize("role", ROLES)
def test_each_role_uses_only_its_own_partitions_of_a_shared_table(role):
    """Otherwise a publisher or inlet could delete the records that protect tables from the loss of versions, or the
    records of another source.
    """
    for places in (each for each in layouts() if each.tables.records):
        table = f"arn:aws:dynamodb:{places.tables.region}:{places.account}:table/{places.tables.records}"
        actions = {each[0]: f"dynamodb:{each}" for each in ("GetItem", "PutItem", "DeleteItem", "Query")}
        actions["U"] = "dynamodb:UpdateItem"
        bucket = places.platform_bucket
        partitions = {
            "queue": f"{bucket}/{places.queue_prefix}queue.orders",
            "chains": f"{bucket}/{places.platform_prefix}records/heartbeats",
            "known": f"{bucket}/{KNOWN}",
            "another source's": f"{bucket}/_s3notify/clicks/records/heartbeats",
            "another bucket's": f"{bucket}2/{places.queue_prefix}queue.orders",
            "another bucket's known": f"{bucket}2/{KNOWN}",
        }
        for kind, partition in partitions.items():
            found = {
                letter
                for letter, action in actions.items()
                if allowed(policy(role, places), (action, f"{table}#{partition}"))
            }
            assert found == set(IN_TABLE[role].get(kind, "")), (kind, places)


def test_a_reader_reads_the_queue_only_if_the_root_moves_alone():
    """Otherwise a reader could not find the changed slots, or could read the entries of a queue that it does not need.
    The reader must not change entries, or read other records of the table.
    """
    for places in layouts():
        before = {(one["Resource"], *one["Action"]) for one in policy("reader", places)["Statement"]}
        granted = policy("reader", replace(places, signals="root"))["Statement"]
        (more,) = (one for one in granted if (one["Resource"], *one["Action"]) not in before)
        queue = f"{places.platform_bucket}/{places.queue_prefix}*"
        if places.tables.records:
            assert more["Action"] == ["dynamodb:Query"]
            assert more["Condition"] == {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": [queue]}}
        else:
            assert (more["Action"], more["Resource"]) == (["s3:GetObject"], f"arn:aws:s3:::{queue}")


@pytest.mark.parametrize("role", ["writer", "publisher"])
def test_policies_deny_writes_to_all_prefixes_of_the_platform(role):
    """Otherwise a writer could write objects below a prefix that belongs to the platform, and that listings and inlets
    therefore ignore.
    """
    for places in layouts((*PLATFORM, "_s3notify/")):
        granted = policy(role, places)
        granted["Statement"].append({"Effect": "Allow", "Action": [*ACTIONS.values()], "Resource": "*"})
        for bucket in {places.bucket, places.platform_bucket}:
            own = own_prefixes(
                bucket,
                platform_bucket=places.platform_bucket,
                platform_prefix=places.platform_prefix,
                keyspace_prefix=places.keyspace_prefix,
                queue_prefix=places.queue_prefix,
            )
            for prefix in own:
                if (places.keyspace_prefix.startswith(prefix) or prefix == "_s3notify/") or (
                    places.queue_prefix.startswith(prefix)
                ):
                    continue
                need = (ACTIONS["P"], f"arn:aws:s3:::{bucket}/{prefix}of/a/later/version")
                assert not allowed(granted, need), (need, places)


@pytest.mark.parametrize("prefix", ["raw/", "_s3notify-raw/"])
def test_a_writer_may_read_tables_if_another_policy_permits_it(prefix):
    """Otherwise a program that reads one source's table and writes another source's objects could not run."""
    places = next(
        places for places in layouts() if places.prefix == "raw/" and places.bucket == places.platform_bucket
    )
    places = replace(places, prefix=prefix)
    statements = [*policy("writer", places)["Statement"], *policy("reader", places)["Statement"]]
    for kind, bucket, key in objects(places):
        if "G" in EXPECTED["reader"].get(kind, ""):
            assert allowed({"Statement": statements}, (ACTIONS["G"], f"arn:aws:s3:::{bucket}/{key}")), kind


@pytest.mark.parametrize("role", ["writer", "publisher"])
def test_writers_may_not_delete_versions_or_abort_uploads_of_the_platform(role):
    """Otherwise another policy could permit a writer to delete old versions of table files, or to abort uploads of
    table files.
    """
    for places in layouts((*PLATFORM, "_s3notify/")):
        granted = policy(role, places)
        granted["Statement"].append(
            {"Effect": "Allow", "Action": [*ACTIONS.values(), *OTHER], "Resource": "*"}
        )
        for kind, bucket, key in objects(places):
            if kind in ("source", "signals") or (kind == "queue"):
                continue
            for action in (ACTIONS["P"], ACTIONS["D"], *OTHER):
                assert not allowed(granted, (action, f"arn:aws:s3:::{bucket}/{key}")), (kind, action, places)


@pytest.mark.parametrize("role", ["writer", "publisher"])
def test_names_of_the_platform_are_free_in_another_bucket(role):
    """Otherwise a writer could not write keys with the platform's names to its own bucket, although the platform uses
    these names only in another bucket.
    """
    for places in layouts(("of/ours/",)):
        if places.prefix == "" and places.bucket != places.platform_bucket:
            for key in ("signals/7", "queues/1", "of/ours/table/data/1"):
                for action in ACTIONS.values():
                    assert allowed(policy(role, places), (action, f"arn:aws:s3:::{places.bucket}/{key}")), key


@pytest.mark.parametrize("role", ["writer", "publisher"])
def test_signals_queue_and_tables_below_one_prefix_are_separate(role):
    """Otherwise a grant for signals would include the queue, or a denial for tables would include the signals."""
    places = Places(
        bucket="b", prefix="", platform_bucket="b", platform_prefix="own/", keyspace_prefix="own/",
        queue_prefix="own/queue/", tables=Tables(region="us-east-1"),
    )  # fmt: skip
    granted = policy(role, places)
    for kind, bucket, key in objects(places):
        expected = set(EXPECTED[role].get(kind, "")) | set("DG" * (kind == "signals"))
        arn = f"arn:aws:s3:::{bucket}/{key}"
        assert {one for one, action in ACTIONS.items() if allowed(granted, (action, arn))} == expected, kind


OTHER = ("s3:AbortMultipartUpload", "s3:DeleteObjectVersion")


@pytest.mark.parametrize("role", ROLES)
def test_no_grant_names_a_bucket_outside_the_layout(role):
    """Otherwise a policy would have statements for unused buckets, or statements that only repeat others."""
    for places in layouts():
        granted = policy(role, places)
        buckets = {places.bucket, places.platform_bucket, places.known_bucket}
        named = {s["Resource"] for s in granted["Statement"] if s["Effect"] == "Allow"}
        assert {arn.split(":")[5].partition("/")[0] for arn in named if ":s3:" in arn} <= buckets
        assert unused(granted, set()), "something is granted"
