"""The event notifications of a bucket. S3 has one document of them all, and writes it without a condition.

A change reads it, edits it, writes all of it, and looks afterwards, twice: the document as it is then decides, also
after a lost answer. A change that another writer makes within the milliseconds between a read and its write would be
undone unseen, as with every tool that writes this document; one that undoes ours is seen, and ours is made again.
Notifications of others are written back as S3 gave them.

Ceph RGW keeps each notification by its id: a write adds or replaces those that it has, and one is removed by its id.
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
SETTLE_SECONDS: Final = 2.0
"""Between a write and the second look. Two that write at once differ by less."""

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
    """One notification: events of keys with this prefix and suffix go to this queue, topic or function."""

    id: str
    kind: Kind
    arn: str
    events: frozenset[str]
    prefix: str = ""
    suffix: str = ""

    def overlaps(self, other: "Notification") -> bool:
        """Whether S3 refuses both beside each other: some event of some key would be of both. Pure."""
        events = any(_same_event(one, two) for one in self.events for two in other.events)
        prefixes = self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)
        suffixes = self.suffix.endswith(other.suffix) or other.suffix.endswith(self.suffix)
        return events and prefixes and suffixes

    def covers(self, other: "Notification") -> bool:
        """Whether it announces all that the other one does. Pure."""
        events = all(any(_includes(mine, event) for mine in self.events) for event in other.events)
        return events and other.prefix.startswith(self.prefix) and other.suffix.endswith(self.suffix)

    def __str__(self) -> str:
        where = f"{self.prefix}*{self.suffix}"
        return f"{self.id!r} ({', '.join(sorted(self.events))} of {where!r} to {self.arn})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketNotifications:
    """All notifications of a bucket, as they were read, or as they are to be written."""

    stored: Mapping[str, Any] = field(default_factory=dict)

    @property
    def each(self) -> tuple[Notification, ...]:
        """The notifications, of all kinds."""
        return tuple(
            _read(kind, one) for kind, (name, _) in _FIELDS.items() for one in self.stored.get(name, ())
        )

    @property
    def eventbridge(self) -> bool:
        """Whether all events of the bucket also go to EventBridge."""
        return _EVENTBRIDGE in self.stored

    def find(self, name: str) -> Notification | None:
        """The notification with this id."""
        return next((one for one in self.each if one.id == name), None)

    def without(self, name: str) -> "BucketNotifications":
        """All but the one with this id."""
        left = {
            field: [one for one in self.stored[field] if one.get("Id") != name]
            for field, _ in _FIELDS.values()
            if field in self.stored
        }
        others = {name: value for name, value in self.stored.items() if name not in left}
        return BucketNotifications(stored=others | {field: found for field, found in left.items() if found})

    def having(self, one: Notification) -> "BucketNotifications":
        """The same with this one, which replaces another of its id; unchanged if it is there."""
        if self.find(one.id) == one:
            return self
        others, (field, _) = self.without(one.id), _FIELDS[one.kind]
        return replace(
            others, stored={**others.stored, field: [*others.stored.get(field, ()), _written(one)]}
        )

    def to_eventbridge(self) -> "BucketNotifications":
        """The same with EventBridge switched on."""
        return self if self.eventbridge else replace(self, stored={**self.stored, _EVENTBRIDGE: {}})


class BucketEvents(S3Requests):
    """The notifications of one bucket. Thread-safe. `RefusedError`: no permission, or no store that has them."""

    def server(self) -> Server:
        """Which store this is, by its answer's headers; `aws` also for what is like it. 1 HEAD."""
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
        """The notifications as they are. 1 GET."""
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
        """Edit the notifications until they are so, also after the second look; False if they were.

        `edit` is called on each read, and returns what it was given if that is right. `owner`: the account that the
        bucket has to be of. `only`: on RGW, the id of the one that changes. `ConflictError`: others keep undoing it.
        `RefusedError` for what S3 does not take. 1 GET; else 3 or more, and a PUT, and `SETTLE_SECONDS`.
        """
        failed: S3NotifyError | None = None
        written = looked = False
        for attempt in attempts(self._clock, CHANGE_ATTEMPTS, base=0.5):
            before = self.read()
            if (wanted := edit(before)) == before:
                if not written or looked:
                    return written
                looked = True
                self._clock.sleep(SETTLE_SECONDS)
                if edit(again := self.read()) == again:
                    return True
                continue
            written, looked = True, False
            try:
                self._write(wanted, owner=owner, only=only)
            except RefusedError as error:
                # A queue's policy that was just written may not be known to S3 yet.
                if "Unable to validate" not in str(error) or attempt + 1 == CHANGE_ATTEMPTS:
                    raise
                failed = error
            except UnavailableError as error:
                failed = error  # the next look finds out
            else:
                failed = None
        raise failed or ConflictError(
            f"{self.config.place}: others keep changing its notifications: end what does, and repeat this"
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
                NotificationConfiguration=wanted.stored,  # type: ignore[arg-type] # as it was read
                **arguments,
            ),
            attempts=1,
        )

    def _remove(self, name: str) -> None:
        """RGW's own request, which boto3 has no name for."""
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
    """Whether an event's name, maybe with a star, stands for the other one too."""
    return one == other or (one.endswith("*") and other.startswith(one[:-1]))


def _same_event(one: str, other: str) -> bool:
    return _includes(one, other) or _includes(other, one)
