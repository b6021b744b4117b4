"""JSON whose content decides its kind: a list of records over any number of lines, or JSON lines.

If the setting `format` is `auto`, this format reads objects with the suffix `.json`, because one source may have both
kinds. An object is a document if it begins with a list of objects, or with a line that is only `{`. Every other object
is read as JSON lines. Only the first `BEGINNING_BYTES` of the decoded object decide.

A list cannot be read from its middle. But a large object may have been split as JSON lines, before its content was
known. Then the reader of the first part reads the whole list, up to `MAX_DOCUMENT_BYTES`. The readers of the other
parts also read the object's beginning, and find out that these parts have no record. So each record is read exactly
once, even if the object was split. Each part takes one more GET.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from s3notify_platform.formats.base import Format, Limits, SplitRecords
from s3notify_platform.formats.codecs import HEAD_BYTES, decoded, is_text, peek
from s3notify_platform.formats.json.json_document import JsonDocument
from s3notify_platform.formats.json.jsonl import Jsonl
from s3notify_platform.formats.notation import USUAL, Notation, notation_of
from s3notify_platform.formats.object_bytes import ObjectBytes, chunks
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.protocols.source_enumerator import Split

BEGINNING_BYTES: Final = 4 << 10
FIRST_READ_BYTES: Final = 256 << 10
"""Number of bytes of each GET for an object's beginning.

Several GETs may be needed: the first block of bz2 may take 900 KB.
"""

_DOCUMENT: Final = re.compile(rb'(?:\xef\xbb\xbf)?[ \t\r\n]*+(?:\[[ \t\r\n]*+(?:[\[\]{"]|\Z)|\{[ \t]*+\r?\n)')


class JsonByContent(Format):
    """See the module."""

    name = "json or jsonl"
    suffixes = frozenset({"json"})
    emptiness = "blank lines alone, or an empty list"

    has_records = True
    has_notation = True

    def __init__(self, notation: Notation = USUAL) -> None:
        self.notation = notation
        self._lines, self._document = Jsonl(notation), JsonDocument("", notation)

    def configured(self, settings: Any) -> Format:
        """See `Format`. If a path is set, all objects are documents."""
        if settings.json_path:
            return self._document.configured(settings)
        notation = notation_of(settings)
        return self if notation == self.notation else JsonByContent(notation)

    def may_be_cut(self, key: str, encoding: str) -> bool:
        """See `Format`.

        The result is the same as for an object with JSON lines. If the object is a list, the reader of its first part
        reads the whole list.
        """
        return self._lines.may_be_cut(key, encoding)

    def has_type(self, kind: pa.DataType) -> bool:
        """See `Format`."""
        return self._lines.has_type(kind)

    def parse(
        self, objects: Sequence[tuple[str, bytes]], target: Target, *, encoding: str = "utf-8"
    ) -> Iterator[Parsed]:
        """See `Format`."""
        documents = [_is_document(_beginning(body, key, encoding)) for key, body in objects]
        for form, which in ((self._document, True), (self._lines, False)):
            if which in documents:
                # An object of the other kind is replaced by an empty text, so that each object keeps its
                # number.
                some = [
                    (key, body if is_document is which else b"")
                    for (key, body), is_document in zip(objects, documents, strict=True)
                ]
                yield from form.parse(some, target, encoding=encoding)

    def records(
        self, source: ObjectBytes, split: Split, target: Target, *, encoding: str, limits: Limits
    ) -> SplitRecords:
        """See `Format`."""
        form = self._form_of(source, split.version.key, encoding)
        return (yield from form.records(source, split, target, encoding=encoding, limits=limits))

    def schemas(self, source: ObjectBytes, key: str, encoding: str) -> Iterator[pa.Schema]:
        """See `Format`."""
        yield from self._form_of(source, key, encoding).schemas(source, key, encoding)

    def _form_of(self, source: ObjectBytes, key: str, encoding: str) -> Format:
        """Returns the format of an object, chosen by its beginning.

        Cost: 1 GET, and 1 more GET for each `FIRST_READ_BYTES` that decode to nothing.
        """
        raw = chunks(source, 0, source.size, chunk_bytes=FIRST_READ_BYTES, ahead=1)
        text, _ = peek(decoded(raw, key, encoding, source.size), BEGINNING_BYTES)
        return self._document if _is_document(text) else self._lines


def _beginning(body: bytes, key: str, encoding: str) -> bytes:
    if is_text(body[:HEAD_BYTES], key, encoding):
        return body[:BEGINNING_BYTES]
    return peek(decoded([body], key, encoding, len(body)), BEGINNING_BYTES)[0]


def _is_document(text: bytes) -> bool:
    return _DOCUMENT.match(text) is not None
