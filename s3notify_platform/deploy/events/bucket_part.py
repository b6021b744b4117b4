"""The bucket's part: its notification to the queue or topic, or the switch that sends its events to EventBridge."""

from dataclasses import dataclass

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.aws.bucket_notifications import BucketEvents, BucketNotifications, Notification


@dataclass(slots=True, kw_only=True, eq=False)
class NotificationPart:
    """The bucket's notification; notifications with other ids stay unchanged."""

    bucket: BucketEvents
    notification: Notification
    owner: str

    @property
    def title(self) -> str:
        """The notification's title, for people."""
        keys = f"keys below {self.notification.prefix!r}" if self.notification.prefix else "all keys"
        return f"notification {self.notification.id!r} of bucket {self.bucket.config.bucket!r}: {keys}"

    def lacks(self) -> str:
        """See `Part`. Cost: 1 request."""
        found = self.bucket.read().find(self.notification.id)
        return "" if found == self.notification else "is another" if found else "is missing"

    def make(self) -> None:
        """See `Part`. Requests: as many as `BucketEvents.change`."""

        def edit(found: BucketNotifications) -> BucketNotifications:
            check_apart(found, self.notification)
            return found.having(self.notification)

        self.bucket.change(edit, owner=self.owner)

    def remains(self) -> str:
        """See `Part`. Cost: 1 request."""
        return self.title if self.bucket.read().find(self.notification.id) else ""

    def remove(self) -> None:
        """See `Part`. Requests: as many as `BucketEvents.change`."""
        self.bucket.change(lambda found: found.without(self.notification.id), owner=self.owner)


@dataclass(slots=True, kw_only=True, eq=False)
class EventBridgeSwitch:
    """The bucket's events are sent to EventBridge. Other programs may need the events in EventBridge, so removal leaves
    EventBridge switched on.
    """

    bucket: BucketEvents
    owner: str

    @property
    def title(self) -> str:
        """The switch's title, for people."""
        return f"bucket {self.bucket.config.bucket!r} sends its events to EventBridge, for $1 a million"

    def lacks(self) -> str:
        """See `Part`. Cost: 1 request."""
        return "" if self.bucket.read().eventbridge else "is off"

    def make(self) -> None:
        """See `Part`. Requests: as many as `BucketEvents.change`."""
        self.bucket.change(lambda found: found.to_eventbridge(), owner=self.owner)

    def remains(self) -> str:
        """See `Part`."""
        return ""

    def remove(self) -> None:
        """See `Part`."""


def check_apart(found: BucketNotifications, wanted: Notification) -> None:
    """`UsageError` if S3 would refuse the notification, because another notification matches some of the same events.
    Pure.
    """
    others = [one for one in found.each if one.id != wanted.id and one.overlaps(wanted)]
    if not others:
        return
    by_sns = [one for one in others if one.kind == "topic" and one.covers(wanted)]
    how = (
        "--by sns subscribes the queue to the SNS topic of that notification"
        if by_sns
        else "--by eventbridge works beside all other notifications"
    )
    raise UsageError(
        f"the bucket's notification {others[0]} matches some of the same events, and S3 refuses that: {how}; or narrow "
        "that notification's prefix"
    )
