"""The event notifications of a bucket. S3 keeps all notifications of a bucket in one document, and overwrites this
document without a condition.

`BucketEvents.change` reads the document, edits it, and writes it as a whole. After the write, `change` reads the
document twice more. The document's content decides if the change succeeded, also after a lost answer. Another writer
may change the document in the milliseconds between our read and our write. In this case our write undoes the other
writer's change without notice. Every tool that writes this document has this problem. If another writer undoes our
change, a later read shows this, and our change is made again. Other notifications are written back as S3 returned them.

Ceph RGW keeps each notification by its id. A write adds or replaces the notifications that it contains, and removes
none. A notification is removed by its id.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from urllib.parse import quote

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import NoCredentialsError
from botocore.httpsession import URLLib3Session

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.errors import ConflictError, RefusedError, S3NotifyError, UnavailableError
from s3notify_platform.stores.credentials import session_of
from s3notify_platform.stores.faults import Fault, Verdict, no_bucket
from s3notify_platform.stores.s3.requests import S3Requests
from s3notify_platform.stores.sdk import SDK_ERRORS, count_request, unusable

CHANGE_ATTEMPTS: Final = 12
SECOND_READ_SECONDS: Final = 2.0
"""Time between the first and the second read after a write. The time is longer than any writer needs for a change."""

Kind = Literal["queue", "topic", "function"]
Server = Literal["aws", "rgw", "minio"]

_FIELDS: Final[Mapping[Kind, tuple[str, str]]] = {
    "queue": ("QueueConfigurations", "QueueArn"),
    "topic": ("TopicConfigurations", "TopicArn"),
    "function": ("LambdaFunctionConfigurations", "LambdaFunctionArn"),
}
_EVENTBRIDGE: Final = "EventBridgeConfiguration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """One notification: events of keys with this prefix and suffix are sent to this queue, topic or function."""

    id: str
    kind: Kind
    arn: str
    events: frozenset[str]
    prefix: str = ""
    suffix: str = ""

    def overlaps(self, other: "Notification") -> bool:
        """True if S3 refuses this pair of notifications, because some event would match both notifications. Pure."""
        events = any(_same_event(one, two) for one in self.events for two in other.events)
        prefixes = self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)
        suffixes = self.suffix.endswith(other.suffix) or other.suffix.endswith(self.suffix)
        return events and prefixes and suffixes

    def covers(self, other: "Notification") -> bool:
        """True if this notification announces everything that the other notification announces. Pure."""
        events = all(any(_includes(mine, event) for mine in self.events) for event in other.events)
        return events and other.prefix.startswith(self.prefix) and other.suffix.endswith(self.suffix)

    def __str__(self) -> str:
        where = f"{self.prefix}*{self.suffix}"
        return f"{self.id!r} ({', '.join(sorted(self.events))} of {where!r} to {self.arn})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketNotifications:
    """All notifications of a bucket, as they were read, or as they will be written."""

    stored: Mapping[str, Any] = field(default_factory=dict)

    @property
    def each(self) -> tuple[Notification, ...]:
        """The notifications of all kinds."""
        return tuple(
            _read(kind, one) for kind, (name, _) in _FIELDS.items() for one in self.stored.get(name, ())
        )

    @property
    def eventbridge(self) -> bool:
        """True if all events of the bucket are also sent to EventBridge."""
        return _EVENTBRIDGE in self.stored

    def find(self, name: str) -> Notification | None:
        """The notification with this id."""
        return next((one for one in self.each if one.id == name), None)

    def without(self, name: str) -> "BucketNotifications":
        """All notifications except the notification with this id."""
        left = {
            field: [one for one in self.stored[field] if one.get("Id") != name]
            for field, _ in _FIELDS.values()
            if field in self.stored
        }
        others = {name: value for name, value in self.stored.items() if name not in left}
        return BucketNotifications(stored=others | {field: found for field, found in left.items() if found})

    def having(self, one: Notification) -> "BucketNotifications":
        """These notifications, with `one` in place of the notification with the same id. `self` if nothing changes."""
        if self.find(one.id) == one:
            return self
        others, (field, _) = self.without(one.id), _FIELDS[one.kind]
        return replace(
            others, stored={**others.stored, field: [*others.stored.get(field, ()), _written(one)]}
        )

    def to_eventbridge(self) -> "BucketNotifications":
        """The same notifications, with EventBridge switched on in addition."""
        return self if self.eventbridge else replace(self, stored={**self.stored, _EVENTBRIDGE: {}})


class BucketEvents(S3Requests):
    """The notifications of one bucket. Thread-safe. `RefusedError`: no permission, or no support in the store."""

    def server(self) -> Server:
        """The kind of server, recognised by the headers of its answer. An unknown server counts as `aws`.
        Cost: 1 HEAD.
        """
        found: Any = self._sent(lambda: self.client.head_bucket(Bucket=self.config.bucket))
        headers = {
            name.lower(): str(value) for name, value in found["ResponseMetadata"]["HTTPHeaders"].items()
        }
        if headers.get("server", "").lower().startswith("minio"):
            return "minio"
        ceph = "ceph" in headers.get("server", "").lower() or any(
            name.startswith("x-rgw-") for name in headers
        )
        return "rgw" if ceph or headers.get("x-amz-request-id", "").startswith("tx0000") else "aws"

    def read(self) -> BucketNotifications:
        """The current notifications. Cost: 1 GET."""
        found: Any = self._sent(
            lambda: self.client.get_bucket_notification_configuration(Bucket=self.config.bucket)
        )
        return BucketNotifications(stored={k: v for k, v in found.items() if k != "ResponseMetadata"})

    def change(
        self,
        edit: Callable[[BucketNotifications], BucketNotifications],
        *,
        owner: str | None = None,
        only: str | None = None,
    ) -> bool:
        """Edits the notifications until two consecutive reads return documents that need no further edit. Returns False
        if no edit was needed.

        `edit` is called on each document that was read, and returns its argument if no change is needed. `owner`: the
        account that must own the bucket. `only`: on RGW, the id of the notification that changes. `ConflictError`:
        other writers keep undoing the change. `RefusedError`: S3 refuses the new document. Requests: 1 GET if nothing
        changes; else at least 3 GETs and a PUT, and a wait of `SECOND_READ_SECONDS`.
        """
        failed: S3NotifyError | None = None
        written = looked = False
        for attempt in attempts(self._clock, CHANGE_ATTEMPTS, base=0.5):
            before = self.read()
            if (wanted := edit(before)) == before:
                if not written or looked:
                    return written
                looked = True
                self._clock.sleep(SECOND_READ_SECONDS)
                if edit(again := self.read()) == again:
                    return True
                continue
            written, looked = True, False
            try:
                self._write(wanted, owner=owner, only=only)
            except RefusedError as error:
                # Perhaps S3 does not see a new policy of the queue yet.
                if "Unable to validate" not in str(error) or attempt + 1 == CHANGE_ATTEMPTS:
                    raise
                failed = error
            except UnavailableError as error:
                failed = error  # the next read shows if the write was applied
            else:
                failed = None
        raise failed or ConflictError(
            f"{self.config.place}: other writers keep changing its notifications: stop them, and repeat this command"
        )

    def _write(self, wanted: BucketNotifications, *, owner: str | None, only: str | None) -> None:
        arguments: dict[str, Any] = {"ExpectedBucketOwner": owner} if owner else {}
        if only is not None:
            if (one := wanted.find(only)) is None:
                self._remove(only)
                return
            wanted = BucketNotifications().having(one)
        self._sent(
            lambda: self.client.put_bucket_notification_configuration(
                Bucket=self.config.bucket,
                NotificationConfiguration=wanted.stored,  # type: ignore[arg-type] # S3's own form
                **arguments,
            ),
            attempts=1,
        )

    def _remove(self, name: str) -> None:
        """Removes one notification by RGW's own request, which boto3 does not have."""
        url = f"{self.endpoint_url.rstrip('/')}/{self.config.bucket}?notification={quote(name, safe='')}"
        request = AWSRequest("DELETE", url)
        try:
            if (keys := session_of(self.config).get_credentials()) is None:
                raise NoCredentialsError
            S3SigV4Auth(keys.get_frozen_credentials(), "s3", self.config.region).add_auth(request)
            count_request("s3", "DeleteBucketNotification")
            answer = URLLib3Session(timeout=30).send(request.prepare())
        except NoCredentialsError as error:
            raise unusable(error, self.config) from error
        except SDK_ERRORS as error:
            raise UnavailableError(f"{self.config.place} is unavailable: {type(error).__name__}") from error
        if answer.status_code >= 500:
            raise UnavailableError(f"{self.config.place} is unavailable: {answer.status_code}")
        if answer.status_code >= 400 and answer.status_code != 404:
            raise RefusedError(
                f"{self.config.place} refused to remove notification {name!r}: {answer.status_code}"
            )

    def _sent(self, request: Callable[[], Any], *, attempts: int | None = None) -> Any:
        found = self._send(request, attempts=attempts)
        if not isinstance(found, Fault):
            return found
        if found.verdict is Verdict.MISSING:
            raise no_bucket(self.config)
        raise self._unavailable(found)


def _read(kind: Kind, stored: Mapping[str, Any]) -> Notification:
    rules = stored.get("Filter", {}).get("Key", {}).get("FilterRules", ())
    by = {str(rule.get("Name", "")).lower(): str(rule.get("Value", "")) for rule in rules}
    return Notification(
        id=str(stored.get("Id", "")),
        kind=kind,
        arn=str(stored.get(_FIELDS[kind][1], "")),
        events=frozenset(map(str, stored.get("Events", ()))),
        prefix=by.get("prefix", ""),
        suffix=by.get("suffix", ""),
    )


def _written(one: Notification) -> dict[str, Any]:
    rules = [{"Name": name, "Value": v} for name, v in (("prefix", one.prefix), ("suffix", one.suffix)) if v]
    body: dict[str, Any] = {"Id": one.id, _FIELDS[one.kind][1]: one.arn, "Events": sorted(one.events)}
    return body | ({"Filter": {"Key": {"FilterRules": rules}}} if rules else {})


def _includes(one: str, other: str) -> bool:
    """True if an event's name, perhaps with a star, covers the other name."""
    return one == other or (one.endswith("*") and other.startswith(one[:-1]))


def _same_event(one: str, other: str) -> bool:
    return _includes(one, other) or _includes(other, one)
