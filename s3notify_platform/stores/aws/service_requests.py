"""Sends requests to AWS services, to set up queues, topics and rules. Each request may be sent again."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from botocore.exceptions import ClientError

from s3notify_platform.kernel.attempts import attempts
from s3notify_platform.kernel.clock import SYSTEM_CLOCK, Clock
from s3notify_platform.kernel.errors import RefusedError, UnavailableError, UsageError
from s3notify_platform.kernel.limits import REQUEST_ATTEMPTS
from s3notify_platform.stores.config import Access
from s3notify_platform.stores.sdk import (
    LOST,
    NEVER_SENT,
    SDK_ERRORS,
    SdkUser,
    answer_of,
    count_repeated,
    unusable,
)

_BUSY: Final = frozenset(
    {
        "OverLimit",
        "RequestThrottled",
        "ThrottlingException",
        "Throttling",
        "ThrottledException",
        "ConcurrentModification",
    }
)
_ABSENT: Final = frozenset(
    {
        "NonExistentQueue",
        "QueueDoesNotExist",
        "NotFound",
        "NotFoundException",
        "ResourceNotFoundException",
        "ResourceNotFound",
    }
)
ANSWER_PAGES_MAX: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig(Access):
    """Access to one service: `sqs`, `sns`, `events` or `sts`."""

    service: ClassVar[str] = ""

    name: str

    @property
    def place(self) -> str:
        """The service and its endpoint, for messages."""
        return f"{self.name.upper()} at {self.endpoint or f'AWS ({self.region})'}"


class ServiceRequests(SdkUser[Any]):
    """One service. Thread-safe. Every request to this service can be repeated, so a lost answer has no consequence."""

    def __init__(self, config: ServiceConfig, *, clock: Clock = SYSTEM_CLOCK, **settings: float) -> None:
        super().__init__(config.name, config, **settings)
        self.config = config
        self._clock = clock

    def ask(self, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """The answer; None if the resource does not exist.

        Cost: 1 request, or up to `REQUEST_ATTEMPTS` requests while the service is unavailable. `RefusedError`: no
        permission, or a wrong argument. `UnavailableError`: the request may have been applied; the caller should repeat
        the request.
        """
        cause = ""
        for attempt in attempts(self._clock, REQUEST_ATTEMPTS):
            if attempt:
                count_repeated(self.config.name)
            try:
                answer: dict[str, Any] = getattr(self.client, operation)(**arguments)
                return answer
            except SDK_ERRORS as error:
                if (found := self._cause(error)) is None:
                    return None
                cause = found
        raise UnavailableError(f"{self.config.place} is unavailable: {cause}")

    def pages(self, operation: str, field: str, **arguments: Any) -> Iterator[Any]:
        """The items of a listing, page by page. Requests: for each page, the requests of `ask`."""
        token: dict[str, str] = {}
        for _ in range(ANSWER_PAGES_MAX):
            answer = self.ask(operation, **arguments, **token)
            yield from (answer or {}).get(field, ())
            if not answer or not answer.get("NextToken"):
                return
            token = {"NextToken": answer["NextToken"]}

    def _cause(self, error: Exception) -> str | None:
        """The reason to send the request again; None if the resource does not exist. Raises an error if a repetition
        cannot help.
        """
        if isinstance(error, ClientError):
            status, code, message = answer_of(error)
            kind = code.rpartition(".")[2]
            if kind in _ABSENT:
                return None
            if status >= 500 or status == 429 or kind in _BUSY:
                return f"{status} {code}"
            raise RefusedError(f"{self.config.place} refused the request: {status} {code} {message}".rstrip())
        if isinstance(error, (*NEVER_SENT, *LOST)):
            return type(error).__name__
        raise unusable(error, self.config) from error


def policy_in(text: object, place: str) -> dict[str, Any]:
    """The policy in a service's answer; an empty policy if `text` is empty. `UsageError` if `text` is not a policy."""
    if not text:
        return {"Version": "2012-10-17", "Statement": []}
    try:
        policy = json.loads(str(text))
        statements = policy["Statement"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{place}: its policy is not valid JSON with a Statement: correct it") from error
    return {**policy, "Statement": statements if isinstance(statements, list) else [statements]}
