"""`Part` is the interface of a part of the setup. `StatementPart` is one statement of a policy that has several
writers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import ConflictError

STATEMENT_ATTEMPTS: Final = 10
"""The attempts together take about 15 s. AWS may return the previous policy for some seconds."""

Json = dict[str, Any]


def allowing(name: str, *, service: str, action: str, resource: Any, source: Any, account: Any = "") -> Json:
    """The statement that allows a service one action on `resource`. The service must act on behalf of one sender, whose
    ARN is `source`. With `account`, the sender must belong to this account. Pure.

    ARNs and account are texts, or references in a template.
    """
    condition: Json = {"ArnEquals": {"aws:SourceArn": source}}
    if account:
        condition["StringEquals"] = {"aws:SourceAccount": account}
    return {
        "Sid": name,
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": action,
        "Resource": resource,
        "Condition": condition,
    }


def statements_of(policy: Json | None, name: str) -> list[Json]:
    """The statements of a policy with this `Sid`. Pure."""
    return [one for one in (policy or {}).get("Statement", ()) if one.get("Sid") == name]


class Part(Protocol):
    """A resource that may exist. `lacks` and `remains` only read; `make` and `remove` may be repeated."""

    @property
    def title(self) -> str:
        """The resource's title, for people."""
        ...

    def lacks(self) -> str:
        """The difference from the wanted state, like "is missing"; "" if there is no difference."""
        ...

    def make(self) -> None:
        """Bring the resource to the wanted state."""
        ...

    def remains(self) -> str:
        """The resources that `remove` deletes, for people; "" if no resource is left."""
        ...

    def remove(self) -> None:
        """Delete everything that `make` made."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class StatementPart:
    """One statement of a policy, found by the statement's `Sid`. The policy may have other statements, too.

    `read` returns the policy, or None if its resource does not exist; `write` replaces the whole policy. AWS has no
    condition for this write: a change that others write in the milliseconds between our read and our write is lost. If
    others undo our change, the next read shows this.
    """

    title: str
    statement: Json
    read: Callable[[], Json | None]
    write: Callable[[Json], None]
    clock: Clock = SYSTEM_CLOCK

    def lacks(self) -> str:
        """See `Part`. Cost: 1 or 2 requests."""
        return "" if self._ours(self.read()) == [self.statement] else "is missing"

    def make(self) -> None:
        """See `Part`. Cost: 1 read if nothing changes; else 2 reads and 1 write."""
        self._change([self.statement])

    def remains(self) -> str:
        """See `Part`. Cost: 1 or 2 requests."""
        return self.title if self._ours(self.read()) else ""

    def remove(self) -> None:
        """See `Part`. Cost: 1 read if nothing changes; else 2 reads and 1 write."""
        self._change([])

    def _ours(self, policy: Json | None) -> list[Json]:
        return statements_of(policy, self.statement["Sid"])

    def _change(self, wanted: list[Json]) -> None:
        """Replace our statements in the policy by `wanted`."""
        for _ in attempts(self.clock, STATEMENT_ATTEMPTS, base=0.5):
            policy = self.read()
            if policy is None and wanted:
                continue  # the resource was just made, and AWS does not show it yet
            ours = self._ours(policy)
            if policy is None or ours == wanted:
                return
            others = [one for one in policy["Statement"] if one not in ours]
            self.write({**policy, "Statement": [*others, *wanted]})
        raise ConflictError(
            f"{self.title}: AWS does not show the new policy yet, or others keep changing it: repeat this command"
        )
