"""Text: each line, even a blank line, is one record with one value. Lines that are not UTF-8 are rejects.

This is an example of a `TextFormat` with a parser of its own. The format overrides `cut`, because the method of
`TextFormat` skips blank lines.
"""

from typing import Final

import pyarrow as pa

from s3notify_platform.formats.chunked_records import cut_lines
from s3notify_platform.formats.records import Converted, Offsets, Parser, Records, Recovered, Target
from s3notify_platform.formats.text_format import TextFormat

_SCHEMA: Final = pa.schema([pa.field("value", pa.string())])


class Text(TextFormat):
    """See the module."""

    name = "text"
    suffixes = frozenset({"txt", "log"})
    fixed_schema = _SCHEMA

    def cut(self, body: bytes, *, mark: bool, final: bool, limit: int) -> tuple[Offsets, Offsets, int]:
        """See `TextFormat`."""
        return cut_lines(body, mark=mark, final=final)

    def parser(self, header: bytes, target: Target) -> Parser:
        """See `TextFormat`."""
        return TextLines(target)


class TextLines(Parser):
    """The parser of lines that are one value each. See `records.Parser`."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def convert(self, records: Records) -> Converted:
        """See `records.Parser`."""
        lines = [records.raw(number).decode("utf-8") for number in range(len(records.start))]
        return Converted(table=self.target.column("value", pa.array(lines, pa.string())))

    def unnamed(self, raw: bytes) -> dict[str, str]:
        """See `records.Parser`."""
        return {}

    def recover(self, records: Records) -> Recovered:
        """See `records.Parser`. A line cannot be split: it is one value, or a reject."""
        return Recovered(table=self.target.schema.empty_table(), rescued=[None] * len(records.start))

    def infer(self, records: Records) -> pa.Schema:
        """See `records.Parser`."""
        return _SCHEMA
