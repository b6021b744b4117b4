"""Limits: one place, a name, a unit and a default for each. Checked before the thing that it protects."""

from typing import Final

MAX_OBJECT_BYTES: Final = (1 << 31) - 1
"""What a task reads of one object that has to be in memory as a whole, and the longest record."""

MAX_RAW_BYTES: Final = 1 << 20
"""Raw bytes that quarantine keeps of one rejected record or object."""

MAX_DEPTH: Final = 32
"""Levels of objects and lists in each other, the record itself included: of a record of JSON, and of a schema."""

MAX_COLUMNS: Final = 2000
"""Fields, at any depth, of an inferred or declared schema. Rows may have as many again, from a transform."""

MAX_SCHEMA_BYTES: Final = 512 << 10
"""Bytes of an inferred or declared schema, as Spark's JSON. Of rows twice as many."""
