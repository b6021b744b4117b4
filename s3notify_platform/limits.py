"""Limits: one place, a name, a unit and a default for each. Checked before the thing that it protects."""

from typing import Final

MAX_OBJECT_BYTES: Final = (1 << 31) - 1
"""What a task reads of one object that has to be in memory as a whole, and the longest record."""

MAX_RAW_BYTES: Final = 1 << 20
"""Raw bytes that quarantine keeps of one rejected record or object."""

DRAIN_SECONDS: Final = 9.0
"""From SIGTERM until a command has ended: less than the 10 s after which container runtimes kill."""

CREDENTIALS_SECONDS: Final = 60.0
"""For how long credentials that do not renew themselves are used, before they are looked up again."""
