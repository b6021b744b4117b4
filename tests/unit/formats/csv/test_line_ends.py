"""CSV with any line ends, even with different line ends in one object: each record is a correct row, or is in
a reject.
"""

import gzip
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats.csv.csv_cut import Dialect
from s3notify_platform.formats.csv.csv_format import Csv
from s3notify_platform.formats.records import Parsed, Reject, Target
from tests.support.split_reading import in_turn

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])
REMEDY = "a carriage return without a line feed: end lines with a line feed, or with both"

Rows = list[tuple[Any, Any]]


def ways(body: bytes, key: str, dialect: Dialect, places: list[int]) -> Iterator[list[Parsed]]:
    """Parses the object as a whole, piece by piece, and in consecutive splits."""
    form, target = Csv(dialect), Target(schema=SCHEMA)
    yield [*form.parse([(key, body)], target)]
    for borders in ([], places if form.may_be_cut(key, "utf-8") else []):
        yield in_turn(form, body, borders, target, key=key)


def outcome(parts: list[Parsed]) -> tuple[Rows, list[Reject]]:
    rows = [(row["id"], row["v"]) for part in parts for row in part.table.to_pylist()]
    return rows, [reject for part in parts for reject in part.rejects]


ENDS = ["\n", "\r\n", "\r", "\r\r\n", "\n\r", "\n\n", "\r\r"]
texts = st.text(st.sampled_from('ab,;\t"\r\n #'), max_size=4)
dialects = st.sampled_from(
    [
        Dialect(),
        Dialect(delimiter="\t"),
        Dialect(names="id,v"),
        Dialect(quote=""),
        Dialect(comment="#"),
        Dialect(skip_lines=1),
        Dialect(names="id;v", skip_lines=2, delimiter=";"),
    ]
)


@given(
    dialect=dialects,
    values=st.lists(st.tuples(texts, st.booleans(), st.sampled_from(ENDS)), max_size=5),
    usual=st.sampled_from([None, "\r", "\n", "\r\n"]),
    last=st.booleans(),
    key=st.sampled_from(["k.csv", "k.csv.gz"]),
    places=st.lists(st.integers(1, 200), max_size=3),
)
def test_any_line_ends_give_rows_or_rejects(
    *,
    dialect: Dialect,
    values: list[tuple[str, bool, str]],
    usual: str | None,
    last: bool,
    key: str,
    places: list[int],
) -> None:
    """Otherwise a record with an unusual line end would become a part of another record, or would be missing without a
    reject.
    """
    special = {dialect.delimiter, "\r", "\n", '"', "#"}
    written: list[tuple[int, str, str]] = []
    lines: list[str] = ["#skipped\n"] * dialect.skip_lines + ["#comment\r"] * bool(dialect.comment)
    if not dialect.names:
        lines.append(f"id{dialect.delimiter}v")
        lines.append(usual or (values[0][2] if values else "\n"))
    for number, (any_text, quoted, end) in enumerate(values, 1000):
        value = any_text if dialect.quote else "".join(one for one in any_text if one not in special)
        text = value
        if dialect.quote and (quoted or special & set(value)):
            text = '"' + value.replace('"', '""') + '"'
        written.append((number, value, f"{number}{dialect.delimiter}{text}"))
        lines += [written[-1][2], usual or end]
    body = "".join(lines[:-1] if last and lines else lines).encode()
    stored = gzip.compress(body) if key.endswith(".gz") else body
    for parts in ways(stored, key, dialect, places):
        rows, rejects = outcome(parts)
        expected = [(number, value) for number, value, _ in written]
        assert [row for row in expected if row in rows] == rows
        raws = b"\n".join(reject.raw for reject in rejects)
        left = [one for one in written if (one[0], one[1]) not in rows]
        assert all(str(number).encode() in raws for number, _, _ in left)
        assert len(rejects) <= max(1, len(left))
        if usual in ("\n", "\r\n"):
            assert rows == expected
        assert all(reject.reason.endswith(REMEDY) for reject in rejects)


@pytest.mark.parametrize(
    ("body", "rows", "raws"),
    [
        (b"id,v\r1,a\r2,b\r", [], [b"id,v\r1,a\r2,b\r"]),
        (b"id,v\r1,a\n2,b\n3,c\n", [], [b"id,v\r1,a\n2,b\n3,c\n"]),
        (b'id,v\r"1","a\nb"\n2,b\n', [], [b'id,v\r"1","a\nb"\n2,b\n']),
        (b"id,v\r\r\n1,a\r\r\n", [], [b"id,v\r\r\n1,a\r\r\n"]),
        (b"\r\r\nid,v\n1,a\n", [], [b"\r\r\nid,v\n1,a\n"]),
        (b"id,v\n1,a\r2,b\n3,c\n", [(3, "c")], [b"1,a\r2,b"]),
        (b"id,v\r\n1,a\n2,b\r\n", [(1, "a"), (2, "b")], []),
        (b'id,v\n1,"a\rb"\n', [(1, "a\rb")], []),
        (b"id,v\r", [], []),
    ],
)
@pytest.mark.parametrize("key", ["k.csv", "k.csv.gz"])
def test_a_lone_carriage_return_causes_one_reject(
    body: bytes, rows: Rows, raws: list[bytes], key: str
) -> None:
    """The reject is the whole object if the carriage return is in the header, and one record otherwise."""
    stored = gzip.compress(body) if key.endswith(".gz") else body
    for places in ([], [3], [8, 11]):
        for parts in ways(stored, key, Dialect(), places):
            found, rejects = outcome(parts)
            assert found == rows
            assert [body.startswith(reject.raw) or reject.raw in raws for reject in rejects] == [True] * len(
                raws
            )
            assert all(reject.reason.endswith(REMEDY) for reject in rejects)


@pytest.mark.parametrize(
    ("dialect", "body", "rows"),
    [
        (Dialect(comment="#"), b"# a\rid,v\n1,a\n#\r2,b\n#c\r\n3,c\n#", [(1, "a"), (2, "b"), (3, "c")]),
        (Dialect(skip_lines=2), b"a\rb\rid,v\n1,a\n", [(1, "a")]),
        (Dialect(skip_lines=2), b"a\r\nb\rid,v\n1,a\n", [(1, "a")]),
        (Dialect(skip_lines=1, names="id,v"), b"a\r1,a\n", [(1, "a")]),
    ],
)
def test_lines_that_are_not_records_may_end_with_a_carriage_return(
    dialect: Dialect, body: bytes, rows: Rows
) -> None:
    """The record behind a comment or a skipped line must not be read as a part of that line."""
    for parts in ways(body, "k.csv", dialect, []):
        assert outcome(parts) == (rows, [])
