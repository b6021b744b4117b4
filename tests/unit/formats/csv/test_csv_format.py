"""CSV to rows and rejects: no record is lost, for any bytes."""

import csv
import io
import re
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.formats.records import UNKNOWN_FIELD
from tests.support.parsing import AB, reject, take, values


class TestCsv:
    def test_each_row_carries_the_offset_of_its_record(self) -> None:
        body = b'\xef\xbb\xbfb,a\r\n"x\r\ny",1\r\n\r\n"say ""hi""",2\r\n,3'
        rows, rejects = take([body, b"", b"a,b\n", b"\na\n7\n"], AB, "csv")
        assert rows == [
            (0, 8, {"a": 1, "b": "x\r\ny"}),
            (0, 20, {"a": 2, "b": 'say "hi"'}),
            (0, 36, {"a": 3, "b": ""}),
            (3, 3, {"a": 7, "b": None}),
        ]
        assert rejects == []

    @pytest.mark.parametrize(
        "line", [b"1", b"1,2,3", b"x,y", b'1,"a"b', b"1,\xff", b'1,"open', b"1,a\rb", b"1.5,x"]
    )
    def test_a_bad_record_does_not_stop_others(self, line: bytes) -> None:
        objects = [
            b"a,b\n1,p\n" + line + b"\n2,q\n",
            b'a,b\n3,"r\ns"\n' + line,
            b"a,b\n" + line + b'\n4,5" disk',
        ]
        rows, rejects = take(objects, AB, "csv")
        assert [row["a"] for _, _, row in rows] == [1, 2, 3, 4]
        assert [(r.index, r.offset, r.raw) for r in rejects] == [(0, 8, line), (1, 12, line), (2, 4, line)]
        assert all(r.reason for r in rejects)

    def test_a_quote_that_is_never_closed_rejects_one_line(self) -> None:
        """Otherwise the text up to the next quote would be one value, and the records in this text would not become
        rows.
        """
        rows, rejects = take([b'a,b\n1,"x\n2,y\n3,"z"\n4,"u"'], AB, "csv")
        assert [row["a"] for _, _, row in rows] == [2, 3, 4]
        assert [r.raw for r in rejects] == [b'1,"x']

    def test_empty_fields_and_na_are_null(self) -> None:
        """Otherwise each record with a missing number would be a reject. A string column keeps the text NA, because NA
        may be a real value, like the code of a country.
        """
        assert values([b'a,b\n,\nNA,NA\n"",""\n1,null'], AB, "csv") == [
            {"a": None, "b": ""},
            {"a": None, "b": "NA"},
            {"a": None, "b": ""},
            {"a": 1, "b": "null"},
        ]

    def test_values_are_read_as_the_types_of_their_columns(self) -> None:
        schema = pa.schema(
            [
                ("t", pa.timestamp("us", tz="UTC")), ("n", pa.timestamp("us")), ("d", pa.date32()),
                ("m", pa.decimal128(12, 2)), ("f", pa.float64()), ("o", pa.bool_()),
            ]
        )  # fmt: skip
        body = (
            b"t,n,d,m,f,o\n"
            b"2024-05-06T07:08:09+02:00,2024-05-06T07:08:09Z,2024-02-29,1.5,nan,true\n"
            b"2024-05-06,2024-05-06 07:08:09.25,,,,\n"
            b"2024-13-06,,,,,\n,,,1.555,,\n"
        )
        rows, rejects = take([body], schema, "csv")
        assert rows[0][2]["t"] == datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC)
        assert rows[0][2]["n"] == datetime(2024, 5, 6, 7, 8, 9)
        assert rows[0][2]["m"] == Decimal("1.50")
        assert rows[0][2]["f"] != rows[0][2]["f"], "NaN is a number"
        assert rows[1][2] == {
            "t": datetime(2024, 5, 6, tzinfo=UTC), "n": datetime(2024, 5, 6, 7, 8, 9, 250000), "d": None,
            "m": None, "f": None, "o": None,
        }  # fmt: skip
        assert [r.raw for r in rejects] == [b"2024-13-06,,,,,", b",,,1.555,,"]

    def test_a_lone_carriage_return_joins_two_records(self) -> None:
        """The reject of the two records must end with the second record. If another line of the object could move the
        reject's end, a good record behind the reject would be lost.
        """
        for line in (b"1,p\r\r\n", b"1,p\r\r"):
            for other in (b"", b"3,z\n"):
                rows, rejects = take([b"a,b\n2,y\r\n" + other + line], AB, "csv")
                assert len(rows) == 1 + bool(other)
                assert [r.raw for r in rejects] == [b"1,p\r"]
        for line in (b'1,p\r"x', b'1\r,"x'):
            for other in (b"", b'4,5" disk\n'):
                rows, rejects = take([b"a,b\n" + line + b'\n2,y"\n3,z\n' + other], AB, "csv")
                assert [row["a"] for _, _, row in rows] == ([3, 4] if other else [3])
                assert [r.raw for r in rejects] == [line + b'\n2,y"']

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            (b"x,y\n1,2\n", "'x' is not in the schema"),
            (b"a,a\n1,2\n", "twice"),
            (b"\xff,b\n1,2\n", "utf-8"),
            (b'a,"b\n1,2\n', "unexpected end"),
        ],
    )
    def test_a_bad_header_rejects_its_object(self, body: bytes, reason: str) -> None:
        rows, rejects = take([b"a\n1", body, b"a\n2"], AB, "csv")
        assert [row["a"] for _, _, row in rows] == [1, 2]
        assert [(r.index, r.offset, r.raw) for r in rejects] == [(1, 0, body)]
        assert reason in rejects[0].reason

    def test_unknown_columns_are_dropped_or_rejected(self) -> None:
        assert values([b"z,a\n9,1\n"], AB, "csv") == [{"a": 1, "b": None}]
        assert UNKNOWN_FIELD in reject(b"z,a\n9,1\n", AB, "csv", inferred=True).reason


csv_text = st.text('ab1,"\n\r x', max_size=6)
csv_records = st.lists(st.tuples(st.integers(-9, 9), csv_text), max_size=5)


@given(st.lists(csv_records, min_size=1, max_size=3), st.sampled_from(["\n", "\r\n"]))
def test_csv_written_by_python_is_read_back(contents: list[list[tuple[int, str]]], end: str) -> None:
    """Values may have quotes and line ends. If the reader understood quotes in another way than Python's CSV writer, a
    correct file would give wrong rows or rejects.
    """
    objects = []
    for records in contents:
        sink = io.StringIO()
        writer = csv.writer(sink, lineterminator=end, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(["a", "b"])
        writer.writerows(records)
        objects.append(sink.getvalue().encode())
    rows, rejects = take(objects, AB, "csv")
    assert rejects == []
    assert [(i, row["a"], row["b"]) for i, _, row in rows] == [
        (i, a, b) for i, records in enumerate(contents) for a, b in records
    ]


csv_pieces = st.lists(
    st.sampled_from([b"1,aaa", b'1,"a\n', b"1,", b"aaa", b'"', b'""', b",", b"\n", b"\r\n", b"\r", b" "])
).map(b"".join)


@given(st.lists(st.binary(max_size=30) | csv_pieces, max_size=3))
def test_csv_rows_and_rejects_cover_every_byte(bodies: list[bytes]) -> None:
    """The objects have any bytes. If bytes other than line ends could be outside of all rows and rejects, records of a
    damaged CSV would be lost silently. So each row must have all values between its start and the next start, as
    Python's CSV reader finds them.
    """
    objects = [b"a,b\n" + body for body in bodies]
    rows, rejects = take(objects, AB, "csv")
    for index, body in enumerate(objects):
        ((found, refused),) = [take([body], AB, "csv")]
        assert [(o, row) for i, o, row in rows if i == index] == [(o, row) for _, o, row in found]
        assert [(r.offset, r.raw) for r in rejects if r.index == index] == [
            (r.offset, r.raw) for r in refused
        ]
        starts = sorted([o for _, o, _ in found] + [r.offset for r in refused])
        assert len(set(starts)) == len(starts)
        ends = [*starts[1:], len(body)][: len(starts)]
        raw = {r.offset: r.raw for r in refused}
        read = {offset: row for _, offset, row in found}
        assert body[4 : starts[0] if starts else len(body)].strip() == b""
        for start, end in zip(starts, ends, strict=True):
            if start in read:
                text = io.StringIO(body[start:end].decode(), newline="")
                records = csv.reader(text, strict=True)
                ((a, b),) = (one for one in records if len(one) > 1 or "".join(one).strip())  # no blank line
                assert read[start] == {"a": int(a) if re.search(r"\d", a) else None, "b": b}
            else:
                assert body[start:end].startswith(raw[start])
                assert body[start + len(raw[start]) : end].strip() == b""
