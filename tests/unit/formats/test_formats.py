"""Bytes to rows and rejects: no record is lost, for any bytes."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from s3notify_platform.formats.codecs import HEAD_BYTES, is_text
from s3notify_platform.formats.json.jsonl import Jsonl
from s3notify_platform.formats.records import UNKNOWN_FIELD, Target
from s3notify_platform.formats.registry import FORMATS, check_schema, fixed_schema, format_of
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_COLUMNS, MAX_RAW_BYTES, MAX_SCHEMA_BYTES
from tests.support.parsing import AB, parquet, reject, take, values


class TestJsonLines:
    def test_each_row_carries_the_offset_of_its_record(self) -> None:
        body = b'{"a":1,"b":"x"}\n\n  \r\n {"a":2} \r\n{"b":null,"a":3}'
        rows, rejects = take([body, b"", b'{"a":4}\n'], AB, "jsonl")
        assert rows == [
            (0, 0, {"a": 1, "b": "x"}),
            (0, 21, {"a": 2, "b": None}),
            (0, 32, {"a": 3, "b": None}),
            (2, 0, {"a": 4, "b": None}),
        ]
        assert rejects == []

    def test_a_byte_order_mark_is_skipped(self) -> None:
        assert take([b'\xef\xbb\xbf{"a":1}\n'], AB, "jsonl")[0] == [(0, 3, {"a": 1, "b": None})]

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b"null", "not a JSON object"),
            (b"1", "not a JSON object"),
            (b'"x"', "not a JSON object"),
            (b'[{"a":1}]', "not a JSON object"),
            (b"{", "not a JSON object"),
            (b'{"a":1},', "not a JSON object"),
            (b'{"a":1} trailing', "not a JSON object"),
            (b'{"a":1}{"a":2}', "2 records where one was expected"),
            (b'{"a":1} null {"a":2}', "3 records where one was expected"),
            (b'{"z":{}', "Missing a comma"),
            (b'{"a":1,"a":2}', "specified twice"),
            (b'{"a":"x"}', "a: 'x' does not fit bigint"),
            (b'{"a":1.5}', "a: '1.5' does not fit bigint"),
            (b'{"a":99999999999999999999}', "a: '99999999999999999999' does not fit bigint"),
            (b'{"b":[{"c":1,"c":2}]}', "does not fit string"),
            (b'{"b":"\xff"}', "utf-8"),
            (b'{"b":"\\ud800"}', "does not fit string"),
            (b'{"b":"\x00"}', ""),
            (b"\x00", "not a JSON object"),
            (b'{"a":NULL}', "Invalid value"),
        ],
    )
    def test_a_bad_line_does_not_stop_others(self, line: bytes, reason: str) -> None:
        """Otherwise a single bad line would keep good lines out of the table. Without place, reason and bytes, a user
        could not find and repair the bad line.
        """
        objects = [b'{"a":1}\n{"a":2}\n' + line + b'\n{"a":3}\n', b'{"a":4}', line, line + b"\r\n" + line]
        rows, rejects = take(objects, AB, "jsonl")
        assert [row["a"] for _, _, row in rows] == [1, 2, 3, 4]
        assert [(r.index, r.offset, r.raw) for r in rejects] == [
            (0, 16, line),
            (2, 0, line),
            (3, 0, line),
            (3, len(line) + 2, line),
        ]
        assert all(reason in r.reason for r in rejects), rejects[0].reason

    def test_records_over_several_lines_are_rejected(self) -> None:
        """Each line of such a record is rejected. Otherwise, a damaged line and the next line could become one record,
        and nobody would notice.
        """
        rows, rejects = take([b'{"a":\n1}\n{"a":2}\n{"b":"x}\n{"b":"y}\n{"a":3,"b":"{}"}'], AB, "jsonl")
        assert [row["a"] for _, _, row in rows] == [2, 3]
        assert [r.raw for r in rejects] == [b'{"a":', b"1}", b'{"b":"x}', b'{"b":"y}']

    def test_values_are_read_as_the_types_of_their_columns(self) -> None:
        schema = pa.schema(
            [
                ("t", pa.timestamp("us", tz="UTC")), ("n", pa.timestamp("us")), ("d", pa.date32()),
                ("m", pa.decimal128(12, 2)), ("f", pa.float64()), ("s", pa.struct([("d", pa.date32())])),
                ("l", pa.list_(pa.int32())), ("y", pa.binary()),
            ]
        )  # fmt: skip
        body = (
            b'{"t":"2024-05-06T07:08:09.5+02:00","n":"2024-05-06 07:08:09","d":"2024-02-29","m":1.5,"f":1,'
            b'"s":{"d":"2024-01-01"},"l":[1,null],"y":"abc"}\n'
            b'{"t":"2024-05-06","m":"2.25"}\n{"m":1.555}\n{"d":"2024-02-30"}\n{"l":[2147483648]}'
        )
        rows, rejects = take([body], schema, "jsonl")
        assert rows[0][2] == {
            "t": datetime(2024, 5, 6, 5, 8, 9, 500000, tzinfo=UTC), "n": datetime(2024, 5, 6, 7, 8, 9),
            "d": date(2024, 2, 29), "m": Decimal("1.50"), "f": 1.0, "s": {"d": date(2024, 1, 1)},
            "l": [1, None], "y": b"abc",
        }  # fmt: skip
        assert rows[1][2]["t"] == datetime(2024, 5, 6, tzinfo=UTC)
        assert [r.raw for r in rejects] == [b'{"m":1.555}', b'{"d":"2024-02-30"}', b'{"l":[2147483648]}']

    def test_unknown_fields_are_dropped_or_rejected(self) -> None:
        """A user who declares a schema chooses the columns, so other fields are dropped. Nobody has chosen the columns
        of an inferred schema. If such a schema dropped fields, new data would be lost silently.
        """
        assert values([b'{"a":1,"z":2}'], AB, "jsonl") == [{"a": 1, "b": None}]
        found = reject(b'{"a":1,"z":2}', AB, "jsonl", inferred=True)
        assert UNKNOWN_FIELD in found.reason
        assert UNKNOWN_FIELD not in reject(b'{"a":"x"}', AB, "jsonl", inferred=True).reason

    @pytest.mark.parametrize("fmt", ["jsonl", "csv", "parquet"])
    @pytest.mark.parametrize(
        ("size", "full"),
        [
            ((MAX_COLUMNS, 0), f"full: {MAX_COLUMNS} of at most {MAX_COLUMNS} columns"),
            (
                (1, MAX_SCHEMA_BYTES - 40),
                f"full: {MAX_SCHEMA_BYTES - 40} of at most {MAX_SCHEMA_BYTES} bytes",
            ),
            ((MAX_COLUMNS - 2, MAX_SCHEMA_BYTES - 1000), ""),
        ],
    )
    def test_the_reject_of_an_unknown_field_names_the_remedy_if_the_schema_is_full(
        self, fmt: str, size: tuple[int, int], full: str
    ) -> None:
        """A full schema does not grow. Without the remedy, a user would wait for a column that is never added. A reason
        is cut at 500 characters, so a long field name must not displace the remedy.
        """
        table = pa.table({"a": [1], "z" * 600: [2]})
        lines = {"jsonl": json.dumps(table.to_pylist()[0]), "csv": "a," + "z" * 600 + "\n1,2\n"}
        body = parquet(table) if fmt == "parquet" else lines[fmt].encode()
        target = Target(schema=AB, inferred=True, size=size)
        (found,) = (one for parsed in FORMATS[fmt].parse([("k", body)], target) for one in parsed.rejects)
        assert f"field {'z' * 100 + '…'!r} {UNKNOWN_FIELD}" in found.reason
        assert (full in found.reason) if full else ("full" not in found.reason)
        assert ("declare `schema`" in found.reason) == bool(full)

    def test_offsets_are_right_for_more_than_a_block(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Some objects are longer than a block, and some blocks have several objects. If an offset were counted from
        the beginning of its block, a row's `_offset` would show another record.
        """
        monkeypatch.setattr("s3notify_platform.formats.records.BLOCK_BYTES", 40)
        lines = [b'{"a":%d}' % n if n % 7 else b"bad %d" % n for n in range(50)]
        objects = [b"\n".join(lines), b"\n".join(lines[:3]) + b"\n", b"".join(lines[:1]), lines[1]]
        rows, rejects = take(objects, AB, "jsonl")
        for index, offset, row in rows:
            assert objects[index][offset:].startswith(b'{"a":%d}' % row["a"])
        for found in rejects:
            assert objects[found.index][found.offset :].startswith(found.raw)
        assert len(rows) + len(rejects) == 50 + 3 + 1 + 1

    def test_long_rejects_are_cut(self) -> None:
        assert reject(b"x" * (MAX_RAW_BYTES + 10), AB, "jsonl").raw == b"x" * MAX_RAW_BYTES


class TestParquet:
    TABLE = pa.table({"b": ["x", None], "a": [1, 2]})

    def test_rows_are_numbered(self) -> None:
        rows, rejects = take([parquet(self.TABLE), b"", parquet(self.TABLE.slice(0, 0))], AB, "parquet")
        assert rows == [(0, 0, {"a": 1, "b": "x"}), (0, 1, {"a": 2, "b": None})]
        assert rejects == []

    def test_missing_columns_are_null_and_extra_columns_dropped(self) -> None:
        body = parquet(pa.table({"a": pa.array([1], pa.int32()), "z": [1]}))
        assert values([body], AB, "parquet") == [{"a": 1, "b": None}]
        assert UNKNOWN_FIELD in reject(body, AB, "parquet", inferred=True).reason
        assert "not in the schema" in reject(parquet(pa.table({"z": [1]})), AB, "parquet").reason

    def test_values_are_read_as_the_types_of_their_columns(self) -> None:
        nanos = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))
        schema = pa.schema([("t", pa.timestamp("us", tz="UTC")), ("m", pa.decimal128(12, 2))])
        body = parquet(pa.table({"t": nanos, "m": pa.array([Decimal("1.5")], pa.decimal128(5, 1))}))
        (row,) = values([body], schema, "parquet")
        assert row == {"t": datetime.fromtimestamp(1_700_000_000.123456, UTC), "m": Decimal("1.50")}

    @pytest.mark.parametrize(
        "body",
        [
            b"x",
            b"PAR1",
            b"PAR1" + bytes(100) + b"PAR1",
            parquet(TABLE)[:-20],
            parquet(TABLE)[:4] + b"\xff" * 40 + parquet(TABLE)[44:],
        ],
    )
    def test_a_bad_object_is_one_reject(self, body: bytes) -> None:
        rows, rejects = take([parquet(self.TABLE), body, parquet(self.TABLE)], AB, "parquet")
        assert len(rows) == 4
        assert [(r.index, r.offset, r.raw) for r in rejects] == [(1, 0, body)]
        assert rejects[0].reason.startswith("Parquet: ")

    @given(st.data())
    def test_damaged_bytes_give_rows_or_one_reject(self, data: st.DataObject) -> None:
        """If damage raised an exception, a single damaged file would end the parsing of all files in the same call."""
        body = bytearray(parquet(self.TABLE))
        for _ in range(data.draw(st.integers(1, 4))):
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        rows, rejects = take([bytes(body)], AB, "parquet")
        assert len(rejects) <= 1
        assert not (rows and rejects)


def test_text_has_one_row_for_each_line() -> None:
    rows, rejects = take([b"one\r\n\r\n\xff\nfour", b"", b"\n"], fixed_schema("text"), "text")
    assert [(i, o, r["value"]) for i, o, r in rows] == [
        (0, 0, "one"),
        (0, 5, ""),
        (0, 9, "four"),
        (1 + 1, 0, ""),
    ]
    assert [(r.index, r.offset, r.raw) for r in rejects] == [(0, 7, b"\xff")]


def test_binary_has_one_row_for_each_object() -> None:
    rows, rejects = take([b"\x00\xff", b""], fixed_schema("binary"), "binary")
    assert rows == [(0, 0, {"content": b"\x00\xff"}), (1, 0, {"content": b""})]
    assert rejects == []


def test_suffix_and_setting_choose_the_format() -> None:
    assert format_of("a/b.jsonl", "auto") is FORMATS["jsonl"]
    assert format_of("a/b.NDJSON", "auto") is FORMATS["jsonl"]
    assert format_of("a/b.jsonl.gz", "auto") is FORMATS["jsonl"]
    assert format_of("a/b.csv.ZST", "auto") is FORMATS["csv"]
    assert format_of("a/b.snappy.parquet", "auto") is FORMATS["parquet"]
    assert format_of("a/b.gz", "auto") is None
    assert format_of("a/.gz", "auto") is None
    assert format_of("a.csv/b", "auto") is None
    assert format_of("a/b.xml", "auto") is None
    assert format_of("a/b.xml", "text") is FORMATS["text"]


@pytest.mark.parametrize(
    ("column", "declared"),
    [
        (pa.field("_etag", pa.string()), "parquet"),
        (pa.field("m", pa.map_(pa.string(), pa.int64())), "jsonl"),
        (pa.field("m", pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))]))), "auto"),
        (pa.field("l", pa.list_(pa.int64())), "csv"),
    ],
)
def test_a_schema_that_a_format_cannot_have_is_refused(column: pa.Field, declared: str) -> None:
    with pytest.raises(UsageError, match=column.name):
        check_schema(pa.schema([column]), declared)
    check_schema(AB, declared)


# Any bytes become rows or rejects

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
documents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abz"), inner, max_size=3),
)
json_lines = st.one_of(
    st.builds(lambda a, b: json.dumps({"a": a, "b": b}).encode(), st.integers(-9, 9), st.text(max_size=4)),
    documents.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"")),
    st.text('{}[]":,ab01 \\', max_size=12).map(str.encode),
)


@given(st.lists(st.lists(json_lines, max_size=6), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_json_rows_and_rejects_are_the_records(
    contents: list[list[bytes]], inferred: bool, with_end: bool
) -> None:
    """Otherwise a line would be lost or loaded twice, or a user would find another line at a row's offset. Objects are
    parsed together for speed, so the result for an object must not depend on the other objects.
    """
    objects = [b"".join(line + b"\n" for line in lines)[: None if with_end else -1] for lines in contents]
    assume(all(is_text(body[:HEAD_BYTES], "k", "utf-8") for body in objects))
    assume(not any(Jsonl().refusal(body) for body in objects))
    rows, rejects = take(objects, AB, "jsonl", inferred=inferred)
    places = []
    for index, body in enumerate(objects):
        place = 0
        for line in body.split(b"\n"):
            start = place + (3 if place == 0 and line.startswith(b"\xef\xbb\xbf") else 0)
            if body[start : place + len(line)].strip(b" \t\r\n"):
                places.append((index, start))
            place += len(line) + 1
    assert sorted([(i, o) for i, o, _ in rows] + [(r.index, r.offset) for r in rejects]) == places
    for index, offset, row in rows:
        line = objects[index][offset:].split(b"\n")[0]
        assert json.loads(line).get("a") == row["a"]
    alone = [take([body], AB, "jsonl", inferred=inferred) for body in objects]
    assert rows == [(n, o, row) for n, (found, _) in enumerate(alone) for _, o, row in found]
    assert [(r.index, r.offset, r.raw) for r in rejects] == [
        (n, r.offset, r.raw) for n, (_, found) in enumerate(alone) for r in found
    ]


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=5), min_size=1))
def test_text_lines_are_rows(lines: list[str]) -> None:
    body = "".join(line + "\n" for line in lines).encode()
    if body.startswith(b"\xef\xbb\xbf"):
        return
    assert [r["value"] for r in values([body], fixed_schema("text"), "text")] == lines
