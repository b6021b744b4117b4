"""The content of a `.json` object decides whether the object is a list of records, or JSON lines."""

import bz2
import gzip
import json
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats.base import Format, SplitEnd
from s3notify_platform.formats.inference import infer
from s3notify_platform.formats.json import json_document
from s3notify_platform.formats.json.json_by_content import BEGINNING_BYTES, JsonByContent
from s3notify_platform.formats.json.json_document import JsonDocument
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.formats.registry import AUTO, FORMATS, format_for, format_of
from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.source.source import Input
from s3notify_platform.stores.config import S3Config
from tests.support.split_reading import AB, TINY, Found, Remote, listed, places, version

TARGET = Target(schema=AB)
ROWS = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": None}]
LINES = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
DOCUMENTS = {
    "one line": json.dumps(ROWS).encode(),
    "indented": json.dumps(ROWS, indent=2).encode(),
    "a line each": b"[\n" + b",\n".join(json.dumps(row).encode() for row in ROWS) + b"\n]\n",
    "behind a byte order mark and white space": b"\xef\xbb\xbf \r\n\t[ \r\n " + json.dumps(ROWS).encode()[1:],
    "objects over several lines": b"\n".join(json.dumps(row, indent=1).encode() for row in ROWS),
}


def parsed(body: bytes, key: str = "k.json", encoding: str = "utf-8") -> Found:
    return listed(list(JsonByContent().parse([(key, body)], TARGET, encoding=encoding)), AB)


def values(found: Found) -> list[Any]:
    """Returns the rows, and the reasons of the rejects. The offsets are left out."""
    return [row[1] for row in found]


def in_parts(form: Format, body: bytes, at: list[int], key: str = "k.json") -> tuple[Found, list[SplitEnd]]:
    """Reads each part of the object by itself. Returns the rows and rejects of all parts, and the end of each part."""
    borders = [0, *sorted({place % (len(body) + 1) for place in at} - {0, len(body)}), len(body)]
    pieces, ends = list[Parsed](), list[SplitEnd]()
    for start, end in pairwise(borders):
        split = Split(version=version(body, key), start=start, end=end)
        for found in form.read(Remote(body), split, TARGET, limits=TINY):
            if isinstance(found, SplitEnd):
                ends.append(found)
            else:
                pieces.append(found)
    return listed(pieces, AB), ends


@pytest.mark.parametrize("body", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_a_list_and_lines_give_the_same_records(body: bytes) -> None:
    """Otherwise the rows would depend on the layout of the writer's JSON, or an indented list would be rejected line by
    line.
    """
    assert values(parsed(body)) == values(parsed(LINES)) == ROWS


@pytest.mark.parametrize(
    ("encode", "key"),
    [
        (gzip.compress, "k.json.gz"),
        (bz2.compress, "k.json.bz2"),
        (gzip.compress, "k.json"),
        (lambda body: body.decode().encode("utf-16"), "k.json"),
        (lambda body: gzip.compress(body.decode().encode("utf-16")), "k.json.gz"),
    ],
    ids=["gzip", "bz2", "gzip by content", "UTF-16", "both"],
)
@pytest.mark.parametrize("body", [LINES, DOCUMENTS["indented"]], ids=["lines", "list"])
def test_the_decoded_content_decides(body: bytes, encode: Any, key: str) -> None:
    """Otherwise a list that is compressed or has another encoding would be read as lines, and its lines would be
    rejects. If an object in memory and an object that is read by ranges had different decisions, rows would depend on
    an object's size.
    """
    encoded = encode(body)
    assert values(parsed(encoded, key)) == ROWS
    found, _ = in_parts(JsonByContent(), encoded, [], key)
    assert values(found) == ROWS
    assert infer(JsonByContent().schemas(Remote(encoded), key, "utf-8")) == AB


def test_objects_of_both_kinds_are_parsed_together() -> None:
    """Each row and each reject must have the number of its own object."""
    bodies = [LINES, DOCUMENTS["indented"], b"", b'[{"a":"x"},{"a":7}]', b'{"a":"x"}\n{"a":8}\n']
    found = list(JsonByContent().parse([(f"{n}.json", body) for n, body in enumerate(bodies)], TARGET))
    rows = [
        (index, row["a"])
        for part in found
        for index, row in zip(part.index.tolist(), part.table.to_pylist(), strict=True)
    ]
    assert sorted(rows) == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (3, 7), (4, 8)]
    assert sorted((r.index, r.raw) for part in found for r in part.rejects) == [
        (3, b'{"a":"x"}'),
        (4, b'{"a":"x"}'),
    ]


@given(at=places, body=st.sampled_from([LINES, *DOCUMENTS.values()]))
def test_any_parts_give_each_record_once(at: list[int], body: bytes) -> None:
    """A large list may be split before its content is known. If a later part yielded records, too, the table would have
    these records twice. If a later part did not report its end, the object would never count as read.
    """
    found, ends = in_parts(JsonByContent(), body, at)
    assert found == parsed(body)
    assert {end.status for end in ends} == {"ok"}
    assert ends[-1].reach_end


def test_a_later_part_of_a_list_costs_one_read() -> None:
    """If a later part parsed the list, too, a list in many parts would be transferred and parsed many times."""
    body = DOCUMENTS["indented"]
    remote, half = Remote(body), len(body) // 2
    later = Split(version=version(body, "k.json"), start=half, end=len(body))
    assert [*JsonByContent().read(remote, later, TARGET)] == [
        SplitEnd(status="ok", offset=len(body), reach_end=True)
    ]
    assert remote.asked == [(0, len(body))]


def test_a_list_that_is_too_long_is_one_reject(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list is parsed as a whole, so a list without a limit could exhaust the memory of a task. Without the
    remedy in the reject, a person would not know that an object of JSON lines may be longer.
    """
    monkeypatch.setattr(json_document, "MAX_DOCUMENT_BYTES", 40)
    body = DOCUMENTS["indented"]
    for found in (parsed(body), in_parts(JsonByContent(), body, [50, 60])[0]):
        ((_, reason, _),) = found
        assert "longer than 40 bytes: write JSON lines" in reason


@pytest.mark.parametrize(
    ("body", "rejects"),
    [
        (b'[INFO] started\n{"a":1}\n', 1),
        (b'[2026-01-31] started\n{"a":1}\n', 1),
        (b'{"a":1}\n[{"a":2}]\n', 1),
        (b" " * BEGINNING_BYTES + b'\n{"a":1}\n', 0),
    ],
    ids=["a word", "a number", "a list behind lines", "white space"],
)
def test_an_object_that_does_not_begin_like_a_list_of_records_is_read_as_lines(
    body: bytes, rejects: int
) -> None:
    """Otherwise a first line like `[INFO] started` would make the whole object one reject. Only lines that are not
    records must be rejected.
    """
    found = parsed(body)
    assert [row[1]["a"] for row in found if len(row) == 2] == [1]
    assert sum(len(row) == 3 for row in found) == rejects


@pytest.mark.parametrize(
    ("body", "reasons"),
    [(b"[]", []), (b" [ \n]\n", []), (b"[", ["not a JSON document: a list or an object has no end"])],
    ids=["empty", "blank", "cut"],
)
def test_a_list_without_records_is_empty(body: bytes, reasons: list[str]) -> None:
    """Otherwise each empty list of a writer would be a reject, although nothing is lost. A list without an end must be
    a reject, because its records may be missing.
    """
    found = parsed(body)
    assert found == in_parts(JsonByContent(), body, [])[0]
    assert [row[1] for row in found] == reasons


def test_content_decides_only_if_the_format_is_auto_and_the_suffix_is_json() -> None:
    """If the content decided against a declared format, a user could not demand JSON lines for objects that begin like
    a list. If a path is set, objects must be documents, because JSON lines have no path.
    """
    assert isinstance(format_of("raw/1.json", AUTO), JsonByContent)
    assert isinstance(format_of("raw/1.JSON.gz", AUTO), JsonByContent)
    assert format_of("raw/1.jsonl", AUTO) is format_of("raw/1.ndjson", AUTO) is FORMATS["jsonl"]
    assert format_of("raw/1.json", "jsonl") is FORMATS["jsonl"]
    assert JsonByContent().name not in FORMATS
    given = {"bucket": S3Config(bucket="b"), "prefix": "raw/"}
    assert isinstance(format_for("raw/1.json", Input(**given, json_path="data")), JsonDocument)
    berlin = format_for("raw/1.json", Input(**given, time_zone="Europe/Berlin"))
    assert isinstance(berlin, JsonByContent)
    assert berlin.notation.zones == {"": "Europe/Berlin"}


def test_types_and_splits_are_the_same_as_those_of_json_lines() -> None:
    for kind in (pa.int64(), pa.list_(pa.int64()), pa.map_(pa.string(), pa.string()), pa.duration("s")):
        assert JsonByContent().has_type(kind) == FORMATS["jsonl"].has_type(kind)
    assert JsonByContent().may_be_cut("k.json", "utf-8")
    assert not JsonByContent().may_be_cut("k.json.gz", "utf-8")
