"""The setting of leases as one text, as in object_store and obstore: `dynamo:TABLE` or `dynamo:TABLE:MILLISECONDS`."""

import re
from dataclasses import dataclass
from typing import Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.protocols.conditional_commit.leases import TIMEOUT_SECONDS_MAX

LEASE_FORM: Final = "dynamo:TABLE or dynamo:TABLE:MILLISECONDS"

_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_DIGITS_MAX: Final = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseText:
    """The table of the leases, and the timeout of a lease; None: the default timeout."""

    table: str
    timeout_seconds: float | None


def is_lease_text(text: str) -> bool:
    """True if a text begins like a setting of leases. Pure."""
    return text.partition(":")[0].strip() == "dynamo"


def lease_text(text: str) -> LeaseText:
    """Parses the text; ignores white space around its parts. Pure. `UsageError`, with the right form, for other texts.

    TABLE is the table's name in DynamoDB, not an ARN. The timeout is 1 to 3,600,000 milliseconds.
    """
    kind, *parts = map(str.strip, text.split(":"))
    if kind != "dynamo" or not 1 <= len(parts) <= 2 or not _TABLE.fullmatch(parts[0]):
        raise UsageError(
            f"{text[:100]!r} does not name a table of leases: write {LEASE_FORM}, like dynamo:acme-leases:20000"
        )
    if len(parts) == 1:
        return LeaseText(table=parts[0], timeout_seconds=None)
    digits = parts[1].isascii() and parts[1].isdecimal() and len(parts[1]) <= _DIGITS_MAX
    milliseconds = int(parts[1]) if digits else 0
    if not 1 <= milliseconds <= TIMEOUT_SECONDS_MAX * 1000:
        raise UsageError(
            f"{text[:100]!r} has no timeout of 1 to {TIMEOUT_SECONDS_MAX * 1000:.0f} milliseconds: write {LEASE_FORM}"
        )
    return LeaseText(table=parts[0], timeout_seconds=milliseconds / 1000)
