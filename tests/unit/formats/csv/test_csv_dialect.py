"""CSV in other dialects, and headers that show that the source needs another dialect."""

import csv
import gzip
import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats.base import SplitEnd
from s3notify_platform.formats.csv.csv_cut import Dialect
from s3notify_platform.formats.csv.csv_format import Csv, Tsv
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS, format_for, format_of
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.source.source import Input
from s3notify_platform.stores.config import S3Config
from tests.support.split_reading import TINY, in_turn, version, whole_split

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
Values = list[tuple[int | None, str | None]]


def values(form: Csv, body: bytes, *, inferred: bool = False) -> tuple[Values, list[str]]:
    """Returns rows, and the reasons of rejects. Checks that a read in pieces gives the same as a read of the whole
    object.
    """
    target = Target(schema=SCHEMA, inferred=inferred)
    parsed = list(form.parse([("k", body)], target))
    *pieces, end = form.read(BytesInMemory(body), whole_split(version(body)), target, limits=TINY)
    assert isinstance(end, SplitEnd)
    found = []
    for parts in (parsed, pieces):
        rows = [(row["id"], row["name"]) for part in parts for row in part.table.to_pylist()]  # type: ignore[union-attr]
        found.append((rows, sorted(reject.reason for part in parts for reject in part.rejects)))  # type: ignore[union-attr]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    ("dialect", "body", "rows"),
    [
        (Dialect(delimiter=";"), b'id;name\n1;a,b\n2;"b;\nc"\n', [(1, "a,b"), (2, "b;\nc")]),
        (Dialect(delimiter="|", quote="'"), b"id|name\n1|'a|\"b'\n", [(1, 'a|"b')]),
        (Dialect(escape="\\"), b'id,name\n1,"a\\"b"\n2,a\\,b\n', [(1, 'a"b'), (2, "a,b")]),
        (Dialect(quote=""), b'id,name\n1,"a\n2,b"\n', [(1, '"a'), (2, 'b"')]),
        (Dialect(comment="#"), b'# "it\nid,name\n1,ann\n# 2,x\n3,"\n#"\n', [(1, "ann"), (3, "\n#")]),
        (Dialect(skip_lines=2), b'a "report\n\nid,name\n1,ann\n', [(1, "ann")]),
        (Dialect(skip_lines=3), b"\xef\xbb\xbfx\n\n\nid,name\n1,ann\n", [(1, "ann")]),
        (Dialect(names="id,name"), b"1,ann\n2,bob\n", [(1, "ann"), (2, "bob")]),
        (Dialect(names="name,id", skip_lines=1), b"17.5,2024\nann,1\n", [(1, "ann")]),
        (Dialect(nulls="-|none"), b"id,name\n-,-\nnone,x\n,\n", [(None, "-"), (None, "x"), (None, "")]),
    ],
)
def test_dialects_are_read(dialect: Dialect, body: bytes, rows: Values) -> None:
    assert values(Csv(dialect), body) == (rows, [])


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect(skip_lines=9), b"id,name\n1,ann\n"),
        (Dialect(comment="#"), b"# id,name\n" * 200_000),
        (Dialect(), b"\r\n\n"),
        (Dialect(), b"\xef\xbb\xbf"),
        (Dialect(), b"\n" * (2 << 20) + b"id,name\n1,ann\n"),
    ],
)
def test_a_text_without_a_header_is_one_reject(dialect: Dialect, body: bytes) -> None:
    """Otherwise the object would count as an object without records, and nobody would notice the missing rows. A long
    text must be one reject, too, and not one reject for each piece.
    """
    form, target = Csv(dialect), Target(schema=SCHEMA)
    for key, stored in (("k", body), ("k.gz", gzip.compress(body, 1))):
        *pieces, _ = form.read(BytesInMemory(stored), whole_split(version(stored, key)), target)
        for parts in ([*form.parse([(key, stored)], target)], pieces):
            (reject,) = (reject for part in parts for reject in part.rejects)  # type: ignore[union-attr]
            assert reject.reason.startswith("CSV header: not found in the first")


def test_a_header_that_is_too_long_is_refused() -> None:
    body = b"id," + b"x" * (2 << 20) + b"\n1,a\n"
    (parsed,) = Csv().parse([("k", body)], Target(schema=SCHEMA))
    assert [reject.reason for reject in parsed.rejects] == [
        "CSV header: longer than 1048576 bytes, the limit of a header"
    ]


def test_a_bad_record_does_not_stop_others() -> None:
    dialect = Dialect(delimiter=";", quote="'")
    rows, reasons = values(Csv(dialect), b"id;name\n1;'a'b\nx;c\n2;'d'\n3;e;f\n4\n")
    assert rows == [(2, "d")]
    assert len(reasons) == 4


texts = st.text(st.sampled_from("a1,;\t|'\"\\#\n "), max_size=5)


@given(
    st.lists(st.tuples(st.integers(0, 9), texts), max_size=5),
    st.sampled_from(",;\t|"),
    st.sampled_from("\"'"),
    st.integers(0, 40),
)
def test_csv_written_by_python_is_read(
    rows: list[tuple[int, str]], delimiter: str, quote: str, place: int
) -> None:
    """Otherwise values with quoted delimiters, quotes or line ends would give wrong rows. If a border between pieces or
    splits changed a row, a large object would give other rows than a small object.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, quotechar=quote, lineterminator="\n")
    writer.writerows([("id", "name"), *rows])
    body = out.getvalue().encode()
    form = Csv(Dialect(delimiter=delimiter, quote=quote))
    assert values(form, body) == (rows, [])
    pieces = in_turn(form, body, [place], Target(schema=SCHEMA))
    assert [row["id"] for piece in pieces for row in piece.table.to_pylist()] == [
        number for number, _ in rows
    ]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"id;name\n1;ann\n", "one column 'id;name': set csv_delimiter=';'"),
        (b"id\tname\n1\tann\n", "set csv_delimiter='\\t'"),
        (b"1331,17.72,2024-01-01\n1332,3.1,2024-01-02\n", "column '1331' looks like a value: set csv_names"),
        (b"name,31.12.2024\nx,y\n", "'31.12.2024' looks like a value"),
        (b",".join(b"c%d" % n for n in range(3000)) + b"\n1\n", "3000 columns: a schema has at most"),
    ],
)
def test_a_header_of_another_dialect_is_one_reject(body: bytes, reason: str) -> None:
    """Otherwise an inferred schema would get a column like `id;name`, or columns whose names are values.
    Without the setting in the reject, a person would not know the remedy.
    """
    rows, reasons = values(Csv(), body, inferred=True)
    assert rows == []
    assert [reason in one for one in reasons] == [True]
    assert list(Csv().schemas(BytesInMemory(body), "k", "utf-8")) == []


def test_a_column_of_a_declared_schema_may_have_a_number_as_its_name() -> None:
    schema = pa.schema([("1331", pa.int64())])
    (parsed,) = Csv().parse([("k", b"1331\n7\n")], Target(schema=schema))
    assert parsed.table.to_pylist() == [{"1331": 7}]


def test_the_suffix_tsv_means_tabs() -> None:
    """Otherwise a `.tsv` object would be read with commas, and would be rejected. If the suffix took precedence over
    `csv_delimiter`, a source whose `.tsv` objects have another delimiter could not be read.
    """
    bucket = S3Config(bucket="b", region="us-east-1")
    assert format_of("a/b.TSV.gz", "auto") is FORMATS["tsv"]
    form = format_for("k.tsv", Input(bucket=bucket))
    assert isinstance(form, Tsv)
    assert values(form, b"id\tname\n1\tann,x\n") == ([(1, "ann,x")], [])
    other = format_for("k.tsv", Input(bucket=bucket, csv_delimiter=";"))
    assert isinstance(other, Tsv)
    assert values(other, b"id;name\n1;ann\n") == ([(1, "ann")], [])


@pytest.mark.parametrize(
    "settings", [{"csv_delimiter": ";;"}, {"csv_quote": ","}, {"csv_escape": "é"}, {"csv_comment": "x"}]
)
def test_invalid_settings_are_refused(settings: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="csv_"):
        Input(bucket=S3Config(bucket="b", region="us-east-1"), **settings)
