"""The least IAM policy of each role. A policy allows only the actions that the role's code calls, on the prefixes and
tables that the code uses.

S3's rules behind the policies: HEAD and GET need `s3:GetObject`, and so does `If-Match` on PUT or DELETE. Without
`s3:ListBucket` on the whole bucket, S3 answers 403, not 404, for a missing object. The policies grant the use of the
KMS key that a source names. Other KMS keys, of the source's objects or of queues, need permissions of their own.
Sources may share a records table. So each role gets only the partitions that it uses. The event queue's own policy is
made by `deploy.events`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, assert_never

from s3notify_platform.deploy.dynamo_tables import Json, Tables
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.bucket_records import quote
from s3notify_platform.stores.config import OWN_PREFIX, QUEUE_PREFIX, aws_partition
from s3notify_platform.stores.probe import PROBE
from s3notify_platform.table.known import KNOWN, known_key
from s3notify_platform.table.own_objects import own_prefixes

Role = Literal["writer", "publisher", "run", "reader", "viewer", "sweep", "inlet", "outlet"]
"""`writer` publishes objects; `publisher` publishes objects with entries in the queue. `run` is the sensor and its
runs, and may retry objects in quarantine. `reader` loads committed rows, reads the quarantine and watches the keyspace.
`viewer` reads the tables with another engine, as Delta tables. `sweep` runs the daily checks, `vacuum` and `compact`.
`inlet` receives changes that other systems report. `outlet` delivers to endpoints.

A process with several roles needs the policies of all its roles, but the Deny of `writer` and `publisher` wins over any
Allow. So a process that writes objects cannot also commit, and a `writer` cannot change a queue on a bucket. If the
source's prefix is the whole bucket, a writer must not read the platform's tables in this bucket.
"""

ROLES: Final[tuple[Role, ...]] = (
    "writer", "publisher", "run", "reader", "viewer", "sweep", "inlet", "outlet"
)  # fmt: skip

OWN_NAMES: Final = ("table/*", "derived/*", "records/*", "store.json", f"{PROBE}*")
"""Keys below a source's platform prefix, except the keyspace. Writers of objects must not change these keys."""

KNOWN_ACTIONS: Final[Mapping[Role, Sequence[str]]] = {
    "run": ("GetObject", "PutObject"),
    "sweep": ("GetObject", "PutObject"),
    "reader": ("GetObject",),
}
"""Actions on the records of the source's tables (`table.known`). These records are kept apart from the tables' other
objects.
"""

VIEWED: Final = (
    "table/_delta_log/",
    "table/_symlink_format_manifest/",
    "table/_s3notify/vector/",
    "table/data/",
    "table/part-",
    "derived/",
)
"""Keys below a source's platform prefix that other engines read. Files that Delta engines write begin with `part-`."""

CHANGES: Final = ("s3:AbortMultipartUpload", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutObject")
"""Actions that change objects; a Deny names these actions."""

SQS_ACTIONS: Final = ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places that one source's policies cover. `account`: the account of the tables, needed if there are tables."""

    bucket: str
    prefix: str
    platform_bucket: str
    platform_prefix: str
    keyspace_prefix: str
    tables: Tables
    account: str | None = None
    queue_prefix: str = QUEUE_PREFIX
    known_bucket: str | None = None
    """Bucket of the records of the source's tables, if it is not the platform's bucket."""
    event_queue: str | None = None
    """ARN of the SQS queue that receives the bucket's events, if there is one."""
    tags: bool = False
    """True if committed objects are tagged."""
    kms_key: str | None = None
    """ARN of the KMS key for the objects that the platform writes, if the source names a key."""
    signals: Literal["slots", "root"] = "slots"
    """With `root`, a reader needs the queue's entries: only these entries name the slots whose signals did not move."""

    def __post_init__(self) -> None:
        for prefix in (self.prefix, self.platform_prefix, self.keyspace_prefix, self.queue_prefix):
            if {"*", "?", "$"} & {*prefix}:
                raise UsageError(
                    f"prefix {prefix!r}: * ? and $ have a special meaning in a policy: use another prefix"
                )


def regional_arn(service: str, region: str, account: str | None, name: str) -> str:
    """The ARN of a table or queue. `UsageError` unless the account has 12 digits. Pure."""
    if not re.fullmatch(r"\d{12}", account or ""):
        raise UsageError(
            f"a policy for tables or queues names their account: give its 12 digits, not {account!r}"
        )
    return f"arn:{aws_partition(region)}:{service}:{region}:{account}:{name}"


def policy(role: Role, places: Places) -> Json:
    """The least IAM policy of a role. Pure.

    Whatever the source's prefix is, writers get a Deny for changes of the platform's own objects (`table.own_objects`).
    The Deny does not cover signals, and for a `publisher` it does not cover the queue. If the source's prefix covers
    the platform's objects, the policy also denies writers to read these objects.
    """
    statements: list[Json] = [
        {"Effect": "Allow", "Action": sorted(actions), "Resource": resource, **_condition(partitions)}
        for (resource, partitions), actions in _grants(role, places).items()
    ]
    if role in ("writer", "publisher"):
        statements += _denials(role, places)
    return {"Version": "2012-10-17", "Statement": statements}


def _condition(partitions: str) -> Json:
    if not partitions:
        return {}
    return {"Condition": {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": [partitions]}}}


class _Grants(dict[tuple[str, str], set[str]]):
    """Actions by resource and partitions. For the records table, which sources may share, the partitions are a pattern.
    For other resources, the partitions are "".
    """

    def __init__(self, places: Places) -> None:
        super().__init__()
        self._places = places
        self._aws = aws_partition(places.tables.region)

    def to(self, resource: str, *actions: str, partitions: str = "") -> None:
        self.setdefault((resource, partitions), set()).update(actions)

    def objects(self, bucket: str, prefix: str, *actions: str) -> None:
        self.to(f"arn:{self._aws}:s3:::{bucket}/{prefix}*", *(f"s3:{action}" for action in actions))

    def listing(self, bucket: str) -> None:
        self.to(f"arn:{self._aws}:s3:::{bucket}", "s3:ListBucket")

    def reading(self, bucket: str, *prefixes: str) -> None:
        """Grant read access to objects below these prefixes."""
        self.listing(bucket)
        for prefix in prefixes:
            self.objects(bucket, prefix, "GetObject")

    def table(self, name: str | None, *actions: str, partitions: str = "") -> None:
        if name:
            region, account = self._places.tables.region, self._places.account
            where = regional_arn("dynamodb", region, account, f"table/{name}")
            self.to(where, *(f"dynamodb:{action}" for action in actions), partitions=partitions)

    def records(self, place: str, *actions: str) -> None:
        """Grant actions on partitions of the records table, if there is such a table: the partitions that
        `stores.open_store.open_records` makes for this place of the platform's bucket.
        """
        partitions = f"{self._places.platform_bucket}/{place}"
        self.table(self._places.tables.records, *actions, partitions=partitions)

    def own_records(self, *actions: str) -> None:
        """Grant actions on the source's chains, heartbeats and other records, if they are in a table."""
        self.records(f"{self._places.platform_prefix}records/*", *actions)

    def queue(self) -> None:
        """Grant adding and removing entries of the notification queue."""
        places = self._places
        if places.tables.records:
            actions = ("GetItem", "PutItem", "DeleteItem", "Query", "UpdateItem")
            self.records(f"{places.queue_prefix}*", *actions)
        else:
            self.listing(places.platform_bucket)
            self.objects(
                places.platform_bucket, places.queue_prefix, "GetObject", "PutObject", "DeleteObject"
            )

    def reading_queue(self, *actions: str) -> None:
        """Grant reading of the queue's entries. `actions`: the actions on the records, if they are in a table."""
        if self._places.tables.records:
            self.records(f"{self._places.queue_prefix}*", *actions)
        else:
            self.objects(self._places.platform_bucket, self._places.queue_prefix, "GetObject")

    def marks(self, role: Role) -> None:
        """Grant a reader the queue's entries if the root moves alone (`Location.watcher`)."""
        if role == "reader" and self._places.signals == "root":
            self.reading_queue("Query")

    def known(self, *actions: str) -> None:
        """Grant access to the records of the source's tables. In a DynamoDB table, the partition has the records of all
        sources of the platform's bucket.
        """
        places = self._places
        if actions and places.tables.records:
            self.records(KNOWN, *(action.replace("Object", "Item") for action in actions))
        elif actions:
            bucket = places.known_bucket or places.platform_bucket
            key = f"{places.platform_bucket}/" * bool(places.known_bucket) + known_key(places.platform_prefix)
            # The name of a slot asset's record ends with the asset's name.
            for name in (quote(key), f"{quote(f'{key}.')}*"):
                self.to(f"arn:{self._aws}:s3:::{bucket}/{KNOWN}/{name}", *(f"s3:{each}" for each in actions))
            if places.known_bucket:
                self.listing(bucket)

    def tags(self) -> None:
        """Grant tagging of committed versions, if the source has tags."""
        if self._places.tags:
            actions = ("GetObjectVersionTagging", "PutObjectVersionTagging")
            self.objects(self._places.bucket, self._places.prefix, *actions)
            self.to(f"arn:{self._aws}:s3:::{self._places.bucket}", "s3:GetBucketVersioning")

    def key(self) -> None:
        """Grant the use of the KMS key that the granted actions on objects need, if the source names a key. S3 also
        decrypts to complete an upload of several parts.
        """
        if key := self._places.kms_key:
            used = {action for actions in self.values() for action in actions}
            if used & {"s3:GetObject", "s3:PutObject"}:
                self.to(key, "kms:Decrypt")
            if "s3:PutObject" in used:
                self.to(key, "kms:GenerateDataKey")

    def events(self) -> None:
        """Grant receiving from the SQS queue of the bucket's events."""
        if self._places.event_queue:
            self.to(self._places.event_queue, *(f"sqs:{action}" for action in SQS_ACTIONS))


def _grants(role: Role, places: Places) -> Mapping[tuple[str, str], set[str]]:
    """Actions by resource and partitions."""
    bucket, platform = places.bucket, places.platform_bucket
    prefix, own, signals = places.prefix, places.platform_prefix, places.keyspace_prefix
    grants = _Grants(places)
    grants.known(*KNOWN_ACTIONS.get(role, ()))
    match role:
        case "writer" | "publisher":
            grants.objects(bucket, prefix, "PutObject", "DeleteObject", "GetObject", "AbortMultipartUpload")
            grants.objects(platform, signals, "PutObject")
            # Without this right, S3 answers 403 for a deleted object, so a publisher could not announce its deletion.
            if places.tables.leases or role == "publisher":
                grants.listing(bucket)
            grants.table(places.tables.leases, "GetItem", "PutItem")
            if role == "publisher":
                grants.queue()
        case "run":
            grants.listing(bucket)
            grants.listing(platform)
            # The reconciler aborts uploads of writers that were killed.
            grants.to(
                f"arn:{aws_partition(places.tables.region)}:s3:::{bucket}", "s3:ListBucketMultipartUploads"
            )
            grants.objects(bucket, prefix, "GetObject", "AbortMultipartUpload", "ListMultipartUploadParts")
            grants.tags()
            # The probe tests a multipart upload.
            grants.objects(platform, own, "GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload")
            grants.objects(platform, signals, "GetObject", "PutObject")
            grants.own_records("GetItem", "PutItem", "DeleteItem", "Query")
            grants.table(places.tables.leases, "GetItem", "PutItem")
            grants.queue()
        case "reader" | "viewer":
            viewed = (f"{own}{name}" for name in VIEWED)
            grants.reading(platform, *((own, signals) if role == "reader" else viewed))
            grants.marks(role)
        case "sweep":
            grants.listing(bucket)
            grants.listing(platform)
            grants.objects(platform, own, "GetObject", "PutObject", "DeleteObject")
            grants.objects(platform, signals, "PutObject")
            grants.own_records("GetItem", "PutItem", "DeleteItem", "Query")
            grants.table(places.tables.leases, "GetItem", "PutItem")
            # The sweep finds missed changes, and must not count a change that still has an entry.
            grants.reading_queue("GetItem", "Query")
        case "inlet":
            grants.objects(platform, signals, "PutObject")
            grants.queue()
            grants.events()
        case "outlet":
            grants.queue()
        case _ as unreachable:
            assert_never(unreachable)
    grants.key()
    if signals.startswith(own):
        # The signals are among the platform's objects. So an action that is granted on all these objects is not granted
        # again on the signals.
        platform_arn = f"arn:{aws_partition(places.tables.region)}:s3:::{platform}"
        on_all = grants.get((f"{platform_arn}/{own}*", ""), set())
        grants.get((f"{platform_arn}/{signals}*", ""), set()).difference_update(on_all)
    return {where: actions for where, actions in grants.items() if actions}


def _denials(role: Role, places: Places) -> Iterator[Json]:
    """Deny changes of the platform's objects, in every bucket that may have such objects. Writing signals is never
    denied.

    If the source's prefix and a prefix of the platform overlap, three more actions are denied: reading the platform's
    objects, reading signals, and deleting signals.
    """
    arn = f"arn:{aws_partition(places.tables.region)}:s3:::"
    for bucket in dict.fromkeys(
        (places.platform_bucket, places.bucket, places.known_bucket or places.bucket)
    ):
        own = _own_prefixes(places, bucket)
        covered = bucket == places.bucket and any(
            prefix.startswith(places.prefix) or places.prefix.startswith(prefix) for prefix in own
        )
        yield {
            "Effect": "Deny",
            "Action": [*CHANGES, *(["s3:GetObject"] if covered else [])],
            "Resource": [f"{arn}{bucket}/{key}" for key in dict.fromkeys(_denied(role, places, own))],
        }
        if covered:
            signals = [f"{OWN_PREFIX}*/keyspace/"]
            # A publisher may read its queue, even if the queue's keys are below the keyspace.
            if places.keyspace_prefix in own and not places.queue_prefix.startswith(places.keyspace_prefix):
                signals.append(places.keyspace_prefix)
            yield {
                "Effect": "Deny",
                "Action": ["s3:DeleteObject", "s3:GetObject"],
                "Resource": [f"{arn}{bucket}/{prefix}*" for prefix in dict.fromkeys(signals)],
            }


def _denied(role: Role, places: Places, own: Sequence[str]) -> Iterator[str]:
    """Patterns of the keys that the role must not change: all keys below our prefixes, except signals. If the role
    writes to a queue on the bucket, the queue's keys are left out, too.

    By default, several sources are below one prefix. Each source has signals of its own, which its writers must move.
    """
    if changes_no_queue := role == "writer" or places.tables.records is not None:
        yield from (f"{QUEUE_PREFIX}*", f"{OWN_PREFIX}*/queue/*")
    left = [places.keyspace_prefix, *([] if changes_no_queue else [places.queue_prefix])]
    for prefix in own:
        if prefix == OWN_PREFIX:
            yield from (f"{prefix}*/{name}" for name in OWN_NAMES)
        if prefix != places.platform_prefix and (prefix in left or prefix == OWN_PREFIX):
            continue
        nested = any(one.startswith(prefix) for one in left)
        yield from (f"{prefix}{name}" for name in (OWN_NAMES if nested else ("*",)))


def _own_prefixes(places: Places, bucket: str) -> tuple[str, ...]:
    return own_prefixes(
        bucket,
        platform_bucket=places.platform_bucket,
        platform_prefix=places.platform_prefix,
        keyspace_prefix=places.keyspace_prefix,
        queue_prefix=places.queue_prefix,
    )
