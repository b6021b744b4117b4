"""Reads JSON documents of any number of lines. Each item of a list is a record. A value that is not a list is one
record.

A stored object may contain several JSON values, one after the other. If a path is set, like `data.items`, the records
are at that path. A document is one reject if it has no end, or has nothing at the path. A record that is not a JSON
object becomes a separate reject. `_offset` is the byte where the record begins.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from s3notify_platform.formats.base import (
    HEAD_SAMPLE_BYTES,
    Format,
    Limits,
    SplitEnd,
    SplitRecords,
    empty_end,
)
from s3notify_platform.formats.codecs import decoded, decoded_whole, peek
from s3notify_platform.formats.json.json_bounds import parts_of
from s3notify_platform.formats.json.jsonl import Jsonl, JsonLines
from s3notify_platform.formats.notation import USUAL, Notation, notation_of
from s3notify_platform.formats.object_bytes import ObjectBytes, chunks
from s3notify_platform.formats.records import (
    BOM,
    NO_RECORDS,
    Parsed,
    Records,
    Target,
    rejected_whole,
)
from s3notify_platform.formats.row_conversion import converted
from s3notify_platform.formats.text_format import SAMPLE_RECORDS, inferred
from s3notify_platform.kernel.limits import MAX_DOCUMENT_BYTES
from s3notify_platform.protocols.source_enumerator import Split

_SPACE: Final = re.compile(rb"[ \t\r\n]*+")
_LINE_ENDS: Final = bytes.maketrans(b"\r\n", b"  ")
"""Replaces line ends by spaces. The replacement is safe because strings in JSON contain no line ends."""


class JsonDocument(Format):
    """See the module."""

    name = "json"
    emptiness = "an empty list"

    has_records = True
    has_notation = True

    def __init__(self, path: str = "", notation: Notation = USUAL) -> None:
        self.path, self.notation = path, notation

    def configured(self, settings: Any) -> Format:
        """See `Format`."""
        path, notation = settings.json_path, notation_of(settings)
        same = (path, notation) == (self.path, self.notation)
        return self if same else JsonDocument(path, notation)

    def has_type(self, kind: pa.DataType) -> bool:
        """See `Format`."""
        return Jsonl().has_type(kind)

    def parse(
        self, objects: Sequence[tuple[str, bytes]], target: Target, *, encoding: str = "utf-8"
    ) -> Iterator[Parsed]:
        """See `Format`."""
        parser = JsonLines(target, self.notation)
        for number, (key, body) in enumerate(objects):
            if not body:
                continue
            text = decoded_whole(body, key, encoding, MAX_DOCUMENT_BYTES)
            if text is None or len(text) > MAX_DOCUMENT_BYTES:
                reason = f"damaged, or longer than {MAX_DOCUMENT_BYTES} bytes: write JSON lines"
                yield rejected_whole(number, body, reason, target)
                continue
            try:
                records = _joined(text, [*self._places(text)], number)
            except ValueError as error:
                yield rejected_whole(number, text, f"not a JSON document: {error}", target)
                continue
            for parsed in converted(records, parser):
                # Restores the original line ends.
                if (found := parsed.records) is not None:
                    end = found.offset + found.end - found.start
                    parsed.records = replace(found, body=text, start=found.offset, end=end)
                parsed.rejects = [
                    replace(r, raw=text[r.offset : r.offset + len(r.raw)]) for r in parsed.rejects
                ]
                yield parsed

    def records(
        self, source: ObjectBytes, split: Split, target: Target, *, encoding: str, limits: Limits
    ) -> SplitRecords:
        """See `Format`."""
        if split.start > 0:
            return empty_end(source, split)
        raw = chunks(source, 0, min(source.size, MAX_DOCUMENT_BYTES + 1), chunk_bytes=limits.chunk_bytes)
        yield from self.parse([(split.version.key, b"".join(raw))], target, encoding=encoding)
        return SplitEnd(status="ok", offset=source.size, reach_end=True)

    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        """See `Format`. Infers from the first `SAMPLE_RECORDS` records in the sample's bytes."""
        raw = chunks(source, 0, source.size, chunk_bytes=HEAD_SAMPLE_BYTES, ahead=1)
        text, _ = peek(decoded(raw, key, encoding, source.size), HEAD_SAMPLE_BYTES)
        places = []
        try:
            for place in self._places(text):
                places.append(place)
                if len(places) == SAMPLE_RECORDS:
                    break
        except ValueError:
            pass
        parser = JsonLines(Target(schema=pa.schema([]), inferred=True), self.notation)
        if places:
            yield from inferred(parser, _joined(text, places, 0))

    def _places(self, text: bytes) -> Iterator[tuple[int, int]]:
        """Yields the start and end of each record of a document; none for an empty text.

        Raises `ValueError` if the text is not a document.
        """
        place = len(BOM) if text.startswith(BOM) else 0
        if text and not text[place:].strip(b" \t\r\n"):
            raise ValueError("it is blank")
        while (space := _SPACE.match(text, place)) and (place := space.end()) < len(text):
            if text[place : place + 1] not in (b"[", b"{"):
                raise ValueError("neither a list nor an object")
            found: tuple[int, int] | None = None if self.path else (place, place)
            parts = parts_of(text, place)
            if not self.path and text[place : place + 1] == b"[":
                for _, begin, end in parts:
                    if begin == place:
                        place = end
                        break
                    yield begin, end
                continue
            *named, (_, begin, place) = parts
            found = (begin, place)
            for name in self.path.split(".") if self.path else ():
                found = next(((b, e) for key, b, e in named if key and json.loads(key) == name), None)
                if found is None:
                    raise ValueError(f"nothing at {self.path!r}")
                nested = text[found[0] : found[0] + 1] in (b"[", b"{")
                named = [*parts_of(text, found[0])][:-1] if nested else []
            if self.path and text[found[0] : found[0] + 1] == b"[":
                yield from ((b, e) for _, b, e in named)
            else:
                yield found


def _joined(text: bytes, places: Sequence[tuple[int, int]], index: int) -> Records:
    """Returns the records at these places as JSON lines."""
    if not places:
        return NO_RECORDS
    bounds = np.array(places, np.int64)
    lengths = bounds[:, 1] - bounds[:, 0]
    ends = np.cumsum(lengths + 1) - 1
    body = b"\n".join(text[begin:end].translate(_LINE_ENDS) for begin, end in places)
    return Records(
        body=body, start=ends - lengths, end=ends, index=np.full(len(places), index), offset=bounds[:, 0]
    )
