"""The parts for EventBridge: a rule of the default bus, with the queue as its target."""

import json
from dataclasses import dataclass

from s3notify_platform.deploy.events.event_site import TAG, EventSite
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.aws.service_requests import ServiceRequests


@dataclass(slots=True, kw_only=True, eq=False)
class RulePart:
    """The rule and its target."""

    site: EventSite
    events: ServiceRequests

    @property
    def title(self) -> str:
        """The rule's title, for people."""
        keys = f"keys below {self.site.prefix!r}" if self.site.prefix else "all keys"
        return f"EventBridge rule {self.site.name!r}: events of {keys} of the bucket are sent to the queue"

    def lacks(self) -> str:
        """See `Part`. Cost: 1 or 2 requests."""
        if (found := self.events.ask("describe_rule", Name=self.site.name)) is None:
            return "is missing"
        if _parsed(found.get("EventPattern")) != self.site.pattern():
            return "matches other events"
        if found.get("State") != "ENABLED":
            return "is switched off"
        targets = self._targets()
        return (
            "" if targets.get(self.site.name) == self.site.queue_arn else "does not have the queue as target"
        )

    def make(self) -> None:
        """See `Part`. Cost: the requests of `lacks`, and 2 more if something is missing."""
        if not self.lacks():
            return
        self.events.ask(
            "put_rule",
            Name=self.site.name,
            EventPattern=json.dumps(self.site.pattern()),
            State="ENABLED",
            Description=f"Changes of source {self.site.source} in bucket {self.site.bucket.bucket}",
            # EventBridge does not change the tags of an existing rule.
            Tags=[{"Key": TAG, "Value": self.site.name}],
        )
        target = {"Id": self.site.name, "Arn": self.site.queue_arn}
        done = self.events.ask("put_targets", Rule=self.site.name, Targets=[target])
        if done is None or done.get("FailedEntryCount"):
            raise UsageError(f"rule {self.site.name!r} does not accept the queue as target: {done}")

    def remains(self) -> str:
        """See `Part`. A rule that was not made here stays. Cost: 1 request."""
        return f"EventBridge rule {self.site.name!r}" if self.is_ours() else ""

    def remove(self) -> None:
        """See `Part`. Cost: 3 requests."""
        if self.is_ours():
            self.events.ask("remove_targets", Rule=self.site.name, Ids=[self.site.name])
            self.events.ask("delete_rule", Name=self.site.name)

    def is_ours(self) -> bool:
        """True if the rule was made here. Cost: 1 request."""
        found = self.events.ask("list_tags_for_resource", ResourceARN=self.site.rule_arn)
        return {"Key": TAG, "Value": self.site.name} in (found or {}).get("Tags", ())

    def _targets(self) -> dict[str, str]:
        listed = self.events.pages("list_targets_by_rule", "Targets", Rule=self.site.name)
        return {one["Id"]: one["Arn"] for one in listed}


def _parsed(text: object) -> object:
    try:
        return json.loads(str(text))
    except ValueError:
        return None
