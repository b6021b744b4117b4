"""JSON documents: lists, values over several lines, records at a path."""

import gzip
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats.base import SplitEnd
from s3notify_platform.formats.json.json_document import JsonDocument
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.records import Target
from tests.support.parsing import take
from tests.support.split_reading import Remote, version, whole_split

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def found(body: bytes, path: str = "", key: str = "k") -> tuple[list[tuple[int, int]], list[str]]:
    """Returns the ids of rows with their offsets, and the reasons of rejects.

    Checks that an object in memory gives the same result as an object that is read by ranges.
    """
    target = Target(schema=SCHEMA)
    whole = list(JsonDocument(path).parse([(key, body)], target))
    *pieces, end = JsonDocument(path).read(Remote(body), whole_split(version(body, key)), target)
    assert isinstance(end, SplitEnd)
    assert end.reach_end
    results = []
    for parts in (whole, pieces):
        rows = [
            (offset, row["id"])
            for part in parts
            for offset, row in zip(part.offset.tolist(), part.table.to_pylist(), strict=True)  # type: ignore[union-attr]
        ]
        results.append((rows, [reject.reason for part in parts for reject in part.rejects]))  # type: ignore[union-attr]
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize(
    ("body", "path", "rows"),
    [
        (b'[{"id":1},{"id":2}]', "", [(1, 1), (10, 2)]),
        (b'\xef\xbb\xbf [\r\n {"id":\r\n 1}\r\n]\n', "", [(8, 1)]),
        (b'{\n "id": 1\n}\n', "", [(0, 1)]),
        (b'{"id":1}\n{"id":\n2}', "", [(0, 1), (9, 2)]),
        (b'{"n":[1],"data":{"items":[{"id":1},{"id":2}]}}', "data.items", [(26, 1), (35, 2)]),
        (b'{"data":{"id":5}}', "data", [(8, 5)]),
        (b"[]", "", []),
        (b"", "", []),
        (b' {"a":[]} ', "a", []),
    ],
)
def test_records_are_found(body: bytes, path: str, rows: list[tuple[int, int]]) -> None:
    assert found(body, path) == (rows, [])


@pytest.mark.parametrize(
    ("body", "path", "reason"),
    [
        (b'[{"id":1},{"id"', "", "a list or an object has no end"),
        (b'{"a":1}', "b", "nothing at 'b'"),
        (b'{"a":1}', "a.b", "nothing at 'a.b'"),
        (b"text", "", "neither a list nor an object"),
        (b'[{"id":1}] x', "", "neither a list nor an object"),
    ],
)
def test_a_text_that_is_not_a_document_is_one_reject(body: bytes, path: str, reason: str) -> None:
    rows, reasons = found(body, path)
    assert rows == []
    assert len(reasons) == 1
    assert reason in reasons[0]


def test_a_bad_record_does_not_stop_others() -> None:
    """The reject must have the bad record's text, unchanged from the document."""
    body = b'[{"id":1}, 3, {"id":\n"x"}, {"id":2}]'
    assert found(body)[0] == [(1, 1), (27, 2)]
    (parsed,) = JsonDocument().parse([("k", body)], Target(schema=SCHEMA))
    assert sorted((r.offset, r.raw) for r in parsed.rejects) == [(11, b"3"), (14, b'{"id":\n"x"}')]


def test_compressed_documents_are_read() -> None:
    assert found(gzip.compress(b'[{"id":1}]'), key="k.json.gz") == ([(1, 1)], [])


def test_a_schema_is_inferred_from_the_sampled_records() -> None:
    """A sample may end inside a record. If the incomplete record made the sample unreadable, no schema could
    be inferred from a document that is longer than the sample.
    """
    body = b'{"rows":[{"id":1,\n"name":"x"},{"id":2.5}, 3, {"id"'
    (first, *_) = JsonDocument("rows").schemas(BytesInMemory(body + b":1}]}"), "k", "utf-8")
    assert first.names == ["id", "name"]
    assert list(JsonDocument().schemas(BytesInMemory(b'[{"id":1},{"id'), "k", "utf-8")) == [
        pa.schema([("id", pa.int64())])
    ]


rows_of = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(0, 99), "name": st.text(max_size=4)},
        optional={"more": st.recursive(st.none() | st.text(max_size=3), st.lists, max_leaves=4)},
    ),
    max_size=4,
)


@given(rows_of, st.sampled_from([None, 1]), st.booleans())
def test_json_written_by_python_is_read(
    rows: list[dict[str, object]], indent: int | None, under: bool
) -> None:
    body = json.dumps({'x"[': 1, "a.b": rows, "rows": rows} if under else rows, indent=indent).encode()
    form = JsonDocument("rows" if under else "")
    parsed = list(form.parse([("k", body)], Target(schema=SCHEMA)))
    assert [row for part in parsed for row in part.table.to_pylist()] == [
        {"id": row["id"], "name": row["name"]} for row in rows
    ]


@pytest.mark.parametrize(
    "body", [b'[\n{"id":1},\n{"id":2}\n]\n', b'{\n "id": 1\n}\n', b'[{"id":1},\n {"id":2}]']
)
def test_a_document_among_lines_is_one_reject(body: bytes) -> None:
    """Otherwise most lines of the document would be separate rejects, some of the document's records could be loaded,
    and no reason would name the format to set.
    """
    rows, rejects = take([body, b'{"id":3}\n'], SCHEMA, "jsonl")
    assert [row["id"] for _, _, row in rows] == [3]
    assert [reject.reason for reject in rejects] == [
        "a JSON document, but each line must be an object: set the source's format to json"
    ]
