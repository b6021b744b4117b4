"""A part of what announces changes, and those that a document of several writers has one item of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import ConflictError

STATEMENT_ATTEMPTS: Final = 10
"""About 15 s: AWS may go on showing for some seconds what was there before."""

Json = dict[str, Any]


def allowing(name: str, *, service: str, action: str, resource: Any, source: Any, account: Any = "") -> Json:
    """The statement that allows a service one action, for one source, in `account` if it is given. Pure.

    ARNs and account are texts, or what stands for them in a template.
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


class Part(Protocol):
    """One thing that is there or is not. Looks send reads alone; `make` and `remove` may be repeated."""

    @property
    def title(self) -> str:
        """The thing, for people."""
        ...

    def lacks(self) -> str:
        """The difference to how it has to be, like "is missing"; "" if there is none."""
        ...

    def make(self) -> None:
        """Make it as it has to be."""
        ...

    def remains(self) -> str:
        """The things that `remove` takes out, for people; "" if there is nothing."""
        ...

    def remove(self) -> None:
        """Take out what was made here."""
        ...


@dataclass(slots=True, kw_only=True, eq=False)
class StatementPart:
    """One statement of a policy that may have others, by its `Sid`.

    `read` gives the policy, None if what it is of does not exist; `write` replaces it whole. There is no condition for
    that: what others write within the milliseconds between is lost, and what undoes ours is seen by the look after it.
    """

    title: str
    statement: Json
    read: Callable[[], Json | None]
    write: Callable[[Json], None]
    clock: Clock = SYSTEM_CLOCK

    def lacks(self) -> str:
        """See `Part`. 1 request or 2."""
        policy = self.read()
        return "" if policy is not None and self._ours(policy) == [self.statement] else "is missing"

    def make(self) -> None:
        """See `Part`. 1 read; else 2, and 1 write."""
        self._change([self.statement])

    def remains(self) -> str:
        """See `Part`. 1 request or 2."""
        policy = self.read()
        return self.title if policy is not None and self._ours(policy) else ""

    def remove(self) -> None:
        """See `Part`. 1 read; else 2, and 1 write."""
        self._change([])

    def _ours(self, policy: Json) -> list[Json]:
        return [one for one in policy["Statement"] if one.get("Sid") == self.statement["Sid"]]

    def _change(self, wanted: list[Json]) -> None:
        """Have the policy say these statements of ours."""
        for _ in attempts(self.clock, STATEMENT_ATTEMPTS, base=0.5):
            policy = self.read()
            if policy is None and wanted:
                continue  # it was made a moment ago
            ours = self._ours(policy) if policy is not None else []
            if policy is None or ours == wanted:
                return
            others = [one for one in policy["Statement"] if one not in ours]
            self.write({**policy, "Statement": [*others, *wanted]})
        raise ConflictError(
            f"{self.title}: AWS does not show yet what was written, or others keep changing it: repeat this"
        )
