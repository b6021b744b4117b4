"""Limits: one place, a name, a unit and a default for each. Checked before the thing that it protects."""

from typing import Final

MAX_OBJECT_BYTES: Final = (1 << 31) - 1
"""What a task reads of one object that has to be in memory as a whole, and the longest record."""

MAX_RAW_BYTES: Final = 1 << 20
"""Raw bytes that quarantine keeps of one rejected record or object."""

WITHDRAWN_SHARE: Final = 0.5
"""Share of the objects compared that one listing may withdraw; more waits until a person confirms it."""

WITHDRAWN_OBJECTS: Final = 100
"""Objects compared, from which on that share counts."""
