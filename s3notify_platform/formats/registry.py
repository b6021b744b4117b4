"""The formats, by name; and what a source's setting `format` means for a key, and for a schema.

A new format is one file, with a subclass of `Format` or, for records in a text, `TextFormat`, and one entry here. The
shortest example is `text/plain_text.py`; `tests/unit/formats/test_registry.py` has an example with columns.
"""

from typing import Any, Final

import pyarrow as pa

from s3notify_platform.formats.avro.container import Avro
from s3notify_platform.formats.base import Format
from s3notify_platform.formats.binary import Binary
from s3notify_platform.formats.blocks.orc import Orc
from s3notify_platform.formats.blocks.parquet import Parquet
from s3notify_platform.formats.codecs import without_suffix
from s3notify_platform.formats.csv.csv_format import Csv, Tsv
from s3notify_platform.formats.json.json_by_content import JsonByContent
from s3notify_platform.formats.json.json_document import JsonDocument
from s3notify_platform.formats.json.jsonl import Jsonl
from s3notify_platform.formats.rescue import RESCUED
from s3notify_platform.formats.text.plain_text import Text
from s3notify_platform.kernel.errors import UsageError

AUTO: Final = "auto"
"""With this value of the setting, an object's suffix decides its format."""

FORMATS: Final[dict[str, Format]] = {
    one.name: one
    for one in (Jsonl(), JsonDocument(), Csv(), Tsv(), Parquet(), Avro(), Orc(), Text(), Binary())
}

_BY_CONTENT: Final = JsonByContent()

RESERVED: Final = frozenset(
    {
        "_slot",
        "_key",
        "_etag",
        "_offset",
        "_staged",
        RESCUED.name,
    }
)
"""Names that a source's columns cannot have, in upper or lower case: Spark ignores case."""


def is_name(name: str) -> bool:
    """True if a source's column can have this name. Pure."""
    return bool(name) and name.casefold() not in RESERVED


def format_of(key: str, setting: str) -> Format | None:
    """The format of an object: as the setting says or, with `auto`, as the key's last suffix says; else None. Pure.

    A compression suffix is ignored. With `auto`, the content of an object `.json` decides.
    """
    if setting != AUTO:
        return FORMATS[setting]
    suffix = without_suffix(key.rsplit("/", 1)[-1]).rsplit(".", 1)[-1].lower()
    possible = (*FORMATS.values(), _BY_CONTENT)
    return next((one for one in possible if suffix in one.suffixes), None)


def format_for(key: str, settings: Any) -> Format | None:
    """The format of an object under a source's settings (`source.format_settings.FormatSettings`), or None. Pure."""
    form = format_of(key, settings.format)
    return form and form.configured(settings)


def fixed_schema(setting: str) -> pa.Schema | None:
    """The columns of all objects under this setting, for a format with fixed columns. Pure."""
    return FORMATS[setting].fixed_schema if setting != AUTO else None


def check_schema(schema: pa.Schema, setting: str) -> None:
    """`UsageError` for a declared column whose type the format lacks, or whose name is reserved. Pure."""
    possible = FORMATS.values() if setting == AUTO else [FORMATS[setting]]
    for column in schema:
        if not is_name(column.name):
            raise UsageError(f"column {column.name!r}: the name is reserved for lineage, or empty; rename it")
        for one in possible:
            if not one.has_type(column.type):
                raise UsageError(
                    f"column {column.name!r}: format {one.name} cannot have {column.type}; declare another type"
                )
