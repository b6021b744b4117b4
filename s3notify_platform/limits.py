"""Limits: one place, a name, a unit and a default for each. Checked before the thing that it protects."""

from typing import Final

MAX_OBJECT_BYTES: Final = (1 << 31) - 1
"""What a task reads of one object that has to be in memory as a whole, and the longest record."""

MAX_KEY_BYTES: Final = 1024
"""Bytes of a key, in UTF-8. S3's own limit."""

OVERDUE_SECONDS: Final = 3600.0
"""A batch that is open, or a change that is on its way, for longer is shown; by the wall clock, for people."""

OUTAGE_SECONDS: Final = 60.0
"""Seconds that a run waits at least, in all, for a store that does not answer or throttles, before it fails."""

OUTAGE_WAIT_SECONDS: Final = 10.0
"""Seconds that a run waits at most before it tries again."""

MAX_RAW_BYTES: Final = 1 << 20
"""Raw bytes that quarantine keeps of one rejected record or object."""

DRAIN_SECONDS: Final = 9.0
"""From SIGTERM until a command has ended: less than the 10 s after which container runtimes kill."""

CREDENTIALS_SECONDS: Final = 60.0
"""For how long credentials that do not renew themselves are used, before they are looked up again."""
