"""The formats by name. The functions apply a source's setting `format` to a key or to a schema.

A new format is one file and one entry, the last of `FORMATS`. Then `poe options` writes the format into the guide.

For a format whose lines name their fields, the file is in `formats/text/`, and has a subclass of
`field_lines.FieldLines` with `name`, `suffixes` and the method `fields(record: str) -> dict[str, str]`. This method
gets each line that is not empty, and raises `ValueError` with the reason for a malformed one. `FieldLines` does the
rest: types, inference, line ends and quarantine. `Pairs` in `tests/unit/formats/test_registry.py` is an example. A test
of a format uses `take` and `infer` of `tests/support/parsing.py`. For all other formats, the docstring of `formats`
names the base class.
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
from s3notify_platform.formats.sql_types import sql_type
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
"""Names that a source's columns cannot have. Case does not matter, because Spark ignores it."""


def is_name(name: str) -> bool:
    """True if a source's column can have this name. Pure."""
    return bool(name) and name.casefold() not in RESERVED


def format_of(key: str, setting: str) -> Format | None:
    """Returns the format of an object, from the setting or, with `auto`, from the key's last suffix; None if the suffix
    is unknown. Pure.

    A compression suffix is ignored. With `auto`, the format for the suffix `.json` chooses between documents and lines
    by content.
    """
    if setting != AUTO:
        return FORMATS[setting]
    suffix = without_suffix(key.rsplit("/", 1)[-1]).rsplit(".", 1)[-1].lower()
    possible = (*FORMATS.values(), _BY_CONTENT)
    return next((one for one in possible if suffix in one.suffixes), None)


def format_for(key: str, settings: Any) -> Format | None:
    """Returns the format of an object, configured by a source's settings (`source.format_settings.FormatSettings`), or
    None. Pure.
    """
    form = format_of(key, settings.format)
    return form and form.configured(settings)


def fixed_schema(setting: str) -> pa.Schema | None:
    """Returns the columns of a format whose objects all have the same columns; None for any other setting. Pure."""
    return FORMATS[setting].fixed_schema if setting != AUTO else None


def check_schema(schema: pa.Schema, setting: str) -> None:
    """Raises `UsageError` for a declared column if its name is reserved, or if the format does not support its type.
    Pure.
    """
    possible = FORMATS.values() if setting == AUTO else [FORMATS[setting]]
    for column in schema:
        if not is_name(column.name):
            raise UsageError(f"column {column.name!r}: the name is reserved for lineage, or empty; rename it")
        for one in possible:
            if not one.has_type(column.type):
                raise UsageError(
                    f"column {column.name!r}: format {one.name} cannot have {sql_type(column.type)}; "
                    "declare another type"
                )
