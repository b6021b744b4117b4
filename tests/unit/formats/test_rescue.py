"""Rescue: a record keeps the values that fit, and `_rescued` has the other values. No value is lost, for any record."""

import csv
import io
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3notify_platform.formats import records
from s3notify_platform.formats import row_conversion as conversion
from s3notify_platform.formats.records import Parsed
from s3notify_platform.formats.rescue import OTHERS, added, below, mismatch_reason
from s3notify_platform.kernel.limits import MAX_RESCUED_PATHS
from tests.support.parsing import AB, parquet, reject, take

DEEP = pa.schema(
    [
        ("a", pa.int64()), ("b", pa.string()), ("f", pa.float64()), ("m", pa.decimal128(6, 2)),
        ("o", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.bool_())])))])),
        ("l", pa.list_(pa.int64())),
    ]
)  # fmt: skip


def rescued(
    objects: list[bytes],
    schema: pa.Schema,
    fmt: str,
    *,
    inferred: bool = False,
    seen: list[Parsed] | None = None,
) -> list[tuple[dict[str, Any], dict[str, str]]]:
    """Each record's columns, and the content of its `_rescued`. Checks that there are no rejects."""
    rows, rejects = take(objects, schema, fmt, inferred=inferred, mismatches="rescue", seen=seen)
    assert rejects == []
    return [(row, json.loads(row.pop("_rescued") or "{}")) for _, _, row in rows]


def total(seen: list[Parsed], name: str) -> dict[int, dict[str, int]]:
    found: dict[int, Counter[str]] = {}
    for parsed in seen:
        for index, counts in getattr(parsed, name).items():
            found.setdefault(index, Counter()).update(counts)
    return {index: dict(counts) for index, counts in found.items()}


class TestJsonLines:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (b'"x"', "x"), (b"1.5", "1.5"), (b"99999999999999999999", "99999999999999999999"), (b"true", "true"),
            (b'{"p" : [1,  2.50]}', '{"p" : [1,  2.50]}'), (b"[]", "[]"), (b'"\\u00e9\\n"', "\u00e9\n"),
            (b'"\\ud800"', "\ud800"), (b"1e3", "1e3"), (b"NaN", "NaN"),
        ],
    )  # fmt: skip
    def test_a_value_that_does_not_fit_is_rescued(self, value: bytes, text: str) -> None:
        """Otherwise a single wrong value would keep the other values of its record out of the table. Without the
        unchanged text in `_rescued`, a user could not repair the value later.
        """
        found = rescued([b'{"a":1,"b":"p"}\n{"b":"q","a": ' + value + b' }\n{"a":3}\n'], AB, "jsonl")
        assert found == [
            ({"a": 1, "b": "p"}, {}),
            ({"a": None, "b": "q"}, {"a": text}),
            ({"a": 3, "b": None}, {}),
        ]

    def test_nested_values_that_do_not_fit_are_rescued(self) -> None:
        """Only the innermost value becomes null. If a whole struct or list became null, values that fit would be
        missing from their columns.
        """
        body = (
            b'{"o":{"x":"1","y":[{"z":1},{"z":true,"w":"?"},2]},"l":[1,"2",null],"q.r":{"s":1},"m":"0.125"}\n'
            b'{"o":[1],"l":{},"f":"x"}\n{"o":{"y":[{"v":0}]}}'
        )
        seen: list[Parsed] = []
        assert rescued([body], DEEP, "jsonl", seen=seen) == [
            (
                dict.fromkeys(DEEP.names)
                | {"o": {"x": None, "y": [{"z": None}, {"z": True}, None]}, "l": [1, None, None]},
                {
                    "o.x": "1", "o.y[0].z": "1", "o.y[1].w": "?", "o.y[2]": "2", "l[1]": "2",
                    "`q.r`": '{"s":1}', "m": "0.125",
                },
            ),
            (dict.fromkeys(DEEP.names), {"o": "[1]", "l": "{}", "f": "x"}),
            (dict.fromkeys(DEEP.names) | {"o": {"x": None, "y": [{"z": None}]}}, {"o.y[0].v": "0"}),
        ]  # fmt: skip
        assert total(seen, "mismatches") == {
            0: {"o.x": 1, "o.y[].z": 1, "o.y[]": 1, "l[]": 1, "m": 1, "o": 1, "l": 1, "f": 1}
        }
        assert total(seen, "unnamed") == {0: {"o.y[].w": 1, "`q.r`": 1, "o.y[].v": 1}}

    @pytest.mark.parametrize(
        "line",
        [b"no", b'{"a":1', b'{"a":1,"a":2}', b'{"b":"\xff"}', b"[1]", b'{"a":1}{"a":2}', b'{"b":"\x00"}'],
    )
    def test_a_record_that_cannot_be_split_is_quarantined(self, line: bytes) -> None:
        """A record that cannot be split gives no values. If the record became a row, the row would have only nulls, and
        a user would not see the parser's reason.
        """
        rows, rejects = take([b'{"a":"x"}\n' + line + b'\n{"a":"y"}'], AB, "jsonl", mismatches="rescue")
        assert [row["_rescued"] for _, _, row in rows] == ['{"a":"x"}', '{"a":"y"}']
        assert [(r.offset, r.raw) for r in rejects] == [(10, line)]
        assert rejects[0].reason

    def test_fields_that_the_schema_lacks_are_rescued(self) -> None:
        """Otherwise values of a new field would be missing from the table. Contradicting types must not prevent the
        rescue, because nobody has chosen a type for such a field.
        """
        body = b'{"a":1,"z":2}\n{"a":2,"z":"x"}\n{"a":3,"z":null}\n{"z":[0.10]}\n'
        seen: list[Parsed] = []
        assert rescued([body, b'{"y":1}'], AB, "jsonl", seen=seen) == [
            ({"a": 1, "b": None}, {"z": "2"}),
            ({"a": 2, "b": None}, {"z": "x"}),
            ({"a": 3, "b": None}, {}),
            ({"a": None, "b": None}, {"z": "[0.10]"}),
            ({"a": None, "b": None}, {"y": "1"}),
        ]
        assert total(seen, "unnamed") == {0: {"z": 3}, 1: {"y": 1}}

    def test_an_inferred_schema_reports_the_fields_that_it_lacks(self) -> None:
        """An inferred schema grows by the reported fields. If a record with a mismatch reported no fields, a field that
        occurs only in such records would never get a column. A field that is always null has no type yet.
        """
        seen: list[Parsed] = []
        rescued(
            [b'{"a":1,"z":2}\n{"a":2,"n":null}\n', b'{"a":"x","y":[true]}'],
            AB,
            "jsonl",
            inferred=True,
            seen=seen,
        )
        found = {
            column.name: column.type for parsed in seen for schema in parsed.new_fields for column in schema
        }
        assert found == {"z": pa.int64(), "y": pa.list_(pa.bool_())}


class TestCsv:
    def test_values_that_do_not_fit_are_rescued(self) -> None:
        schema = pa.schema([("a", pa.int64()), ("b", pa.string()), ("t", pa.timestamp("us", tz="UTC"))])
        body = b'b,a,t\np,1.5,2024-01-01\n"q,\n""",x,yesterday\nr,NA,\ns,"2",2024-01-01 00:00:00+01:00\n'
        one = {"b": "p", "a": None}
        (first, second, third, fourth) = rescued([body], schema, "csv")
        assert (first[0] | {"t": 0}, first[1]) == (one | {"t": 0}, {"a": "1.5"})
        assert second == ({"b": 'q,\n"', "a": None, "t": None}, {"a": "x", "t": "yesterday"})
        assert third == ({"b": "r", "a": None, "t": None}, {})
        assert fourth[0]["a"] == 2
        assert fourth[1] == {}

    def test_ragged_records_are_rescued(self) -> None:
        """Otherwise surplus values would be lost, and nothing would show that a record has too few values."""
        seen: list[Parsed] = []
        assert rescued([b'a,b\n1,x,y,"z,"\n2\n3,w\n'], AB, "csv", seen=seen) == [
            ({"a": 1, "b": "x"}, {"_extra": '["y","z,"]'}),
            ({"a": 2, "b": None}, {"_missing": '["b"]'}),
            ({"a": 3, "b": "w"}, {}),
        ]
        assert total(seen, "mismatches") == {0: {"_extra": 1, "_missing": 1}}

    @pytest.mark.parametrize("line", [b'1,"open', b'1,"a"b', b"1,\xff", b"1,a\rb"])
    def test_a_record_that_cannot_be_split_is_quarantined(self, line: bytes) -> None:
        rows, rejects = take([b"a,b\nx,p\n" + line + b"\n2,q\n"], AB, "csv", mismatches="rescue")
        assert [(row["a"], row["_rescued"]) for _, _, row in rows] == [(None, '{"a":"x"}'), (2, None)]
        assert [(r.offset, r.raw) for r in rejects] == [(8, line)]

    def test_columns_that_the_schema_lacks_are_rescued(self) -> None:
        """Otherwise values of a new column would be missing from the table. Values are rescued as unchanged texts,
        because the text 0.10 would lose a digit as a number.
        """
        seen: list[Parsed] = []
        found = rescued([b"a\n0\n", b"z,a\n0.10,1\n,2\n9,x\n"], AB, "csv", seen=seen)
        assert [(row["a"], odd) for row, odd in found] == [
            (0, {}),
            (1, {"z": "0.10"}),
            (2, {}),
            (None, {"z": "9", "a": "x"}),
        ]
        assert total(seen, "unnamed") == {1: {"z": 2}}
        seen = []
        rescued([b"z,y,w,a\n0.5,p,,x\n"], AB, "csv", inferred=True, seen=seen)
        (fields,) = [schema for parsed in seen for schema in parsed.new_fields]
        assert fields == pa.schema([("z", pa.float64()), ("y", pa.string())])


class TestParquet:
    def test_values_that_do_not_fit_are_rescued(self) -> None:
        """Values are cast one by one. Otherwise a single value that does not fit would make its whole column null. If
        no cast to the column's type exists, all values of the column are rescued as texts.
        """
        table = pa.table(
            {
                "a": pa.array([1, 2**63, None], pa.uint64()),
                "f": [[1], None, [2, 3]],
                "t": pa.array([1, 10**15, 3], pa.timestamp("s")),
            }
        )
        schema = pa.schema([("a", pa.int64()), ("f", pa.bool_()), ("t", pa.timestamp("us"))])
        seen: list[Parsed] = []
        (one, two, three) = rescued([parquet(table)], schema, "parquet", seen=seen)
        assert (one[0]["a"], one[1]) == (1, {"f": "[1]"})
        assert (two[0]["a"], two[0]["t"]) == (None, None)
        assert two[1] == {"a": str(2**63), "t": two[1]["t"]}
        assert (three[0]["a"], three[1]) == (None, {"f": "[2,3]"})
        assert total(seen, "mismatches") == {0: {"a": 1, "f": 2, "t": 1}}

    def test_columns_that_the_schema_lacks_are_rescued(self) -> None:
        """Without the rescue, a cast would silently drop fields of structs and lists."""
        table = pa.table(
            {
                "a": [1, 2],
                "z": pa.array([Decimal("1.50"), None]),
                "o": [{"x": 1, "u": b"\xff"}, {"x": 2, "u": None}],
                "l": [[{"p": 1, "q": "s"}, {"p": 2, "q": None}], []],
            }
        )
        schema = pa.schema(
            [
                ("a", pa.int64()),
                ("o", pa.struct([("x", pa.int32())])),
                ("l", pa.list_(pa.struct([("p", pa.int64())]))),
            ]
        )
        seen: list[Parsed] = []
        assert rescued([parquet(table)], schema, "parquet", seen=seen) == [
            ({"a": 1, "o": {"x": 1}, "l": [{"p": 1}, {"p": 2}]}, {"z": "1.50", "o.u": "ff", "l[0].q": "s"}),
            ({"a": 2, "o": {"x": 2}, "l": []}, {}),
        ]
        assert total(seen, "unnamed") == {0: {"z": 1, "o.u": 1, "l[].q": 1}}


class TestQuarantine:
    """The same records with the setting's other value, `quarantine`."""

    @pytest.mark.parametrize(
        ("body", "fmt", "reason"),
        [
            (b'{"a":"x"}', "jsonl", "a: 'x' does not fit bigint"),
            (b'{"a":{"c":1}}', "jsonl", "a: '{\"c\":1}' does not fit bigint"),
            (b"a,b\n1.5,x\n", "csv", "a: '1.5' does not fit bigint"),
            (b"a,b\n1,x,y\n", "csv", 'more values than the header has names: ["y"]'),
            (
                parquet(pa.table({"a": ["no"]})),
                "parquet",
                "Parquet: row group 0: column 'a' does not fit bigint: ",
            ),
            (parquet(pa.table({"a": pa.array([2**63], pa.uint64())})), "parquet", str(2**63)),
        ],
    )
    def test_reasons_name_column_and_value(self, body: bytes, fmt: str, reason: str) -> None:
        assert reason in reject(body, AB, fmt).reason

    def test_values_that_a_given_schema_drops_are_counted(self) -> None:
        """Without the counts by object and path, a user would not notice that a declared schema leaves out fields that
        the objects have.
        """
        nested = pa.schema([("a", pa.int64()), ("o", pa.struct([("x", pa.int64())]))])
        seen: list[Parsed] = []
        take([b'{"a":1,"z":1}\n{"z":2}', b'{"a":2}', b'{"o":{"w":1}}'], nested, "jsonl", seen=seen)
        take([b"a,z\n1,2\n3,\n"], nested.remove(1), "csv", seen=seen)
        table = pa.table({"a": [1, 2, 3], "z": [1, 2, 3], "o": [None, {"x": 1, "y": 2}, None]})
        take([parquet(table)], nested, "parquet", seen=seen)
        assert [parsed.unnamed for parsed in seen] == [
            {0: {"z": 2}, 2: {"o.w": 1}},
            {0: {"z": 1}},
            {0: {"o.y": 1, "z": 3}},
        ]
        assert all(parsed.rejects == [] and parsed.new_fields == [] for parsed in seen)

    def test_an_inferred_schema_rejects_only_records_with_new_fields(self) -> None:
        seen: list[Parsed] = []
        body = b'{"a":1,"z":1}\n{"a":2}\n{"a":3,"z":null}\n{"a":4,"y":{"x":1}}'
        rows, rejects = take([body], AB, "jsonl", inferred=True, seen=seen)
        assert [row["a"] for _, _, row in rows] == [2, 3]
        assert [r.reason for r in rejects] == [
            "field 'z' is not in the schema",
            "field 'y' is not in the schema",
        ]
        (fields,) = seen[0].new_fields
        assert fields == pa.schema([("z", pa.int64()), ("y", pa.struct([("x", pa.int64())]))])
        (found,) = take([parquet(pa.table({"a": [1], "o": [{"x": 1}]}))], AB, "parquet", inferred=True)[1]
        assert records.UNKNOWN_FIELD in found.reason


def test_many_paths_are_counted_together() -> None:
    """A map may be written as a JSON object, with different keys in each record.

    A commit must not have a count for each of these keys.
    """
    found = added([{f"k{n}": 1 for n in range(MAX_RESCUED_PATHS + 10)} | {"often": 5}])
    assert len(found) == MAX_RESCUED_PATHS + 1
    assert found["often"] == 5
    assert sum(found.values()) == MAX_RESCUED_PATHS + 15
    assert found[OTHERS] == 11


# No value is lost

scalar = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4) | st.decimals(allow_nan=False, allow_infinity=False, places=2, max_value=99).map(str)
)  # fmt: skip
value = st.recursive(
    scalar,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyzw."), inner, max_size=3),
)
line = st.fixed_dictionaries({}, optional={"z": st.booleans(), "v": scalar})
good = {
    "a": st.integers(-(2**63), 2**63 - 1), "b": st.text(max_size=4), "z": st.integers(), "z.": value,
    "f": st.floats(allow_nan=False, allow_infinity=False),
    "l": st.lists(st.none() | st.integers(0, 9), max_size=3),
    "o": st.fixed_dictionaries({}, optional={"x": st.integers(0, 9), "y": st.lists(line, max_size=2)}),
}  # fmt: skip
record = st.fixed_dictionaries(
    {}, optional={name: kind | value for name, kind in good.items()} | {"m": scalar}
)


def accounted(found: Any, cell: Any, kind: pa.DataType | None, path: str, odd: dict[str, str]) -> None:
    """Checks that a value of the input is in its column or in `odd`. A value that is found in `odd` is removed from
    `odd`.
    """
    if path in odd:
        assert cell is None
        text = odd.pop(path)
        assert (text == found) if isinstance(found, str) else (json.loads(text) == found)
    elif found is None:
        assert cell is None
    elif kind is not None and pa.types.is_struct(kind):
        kinds = {part.name: part.type for part in kind}
        for name, inner in found.items():
            accounted(inner, cell.get(name), kinds.get(name), below(path, name), odd)
    elif kind is not None and pa.types.is_list(kind):
        assert len(found) == len(cell)
        for place, (inner, there) in enumerate(zip(found, cell, strict=True)):
            accounted(inner, there, kind.value_type, f"{path}[{place}]", odd)
    elif kind is not None and pa.types.is_decimal(kind):
        assert Decimal(str(found)) == cell
    elif kind is not None and pa.types.is_string(kind) and not isinstance(found, str):
        assert json.loads(cell) == found
    else:
        assert kind is not None, path
        assert (float(found) if isinstance(cell, float) else found) == cell
        assert isinstance(cell, bool) == isinstance(found, bool)


@given(st.lists(record, max_size=6), st.booleans(), st.integers(1, 4))
def test_no_json_value_is_lost_by_rescue(
    contents: list[dict[str, Any]], inferred: bool, together: int
) -> None:
    """Whatever the records are, every value must be in its column or in `_rescued`."""
    body = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in contents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, "RECOVER_RECORDS", together)
        found = rescued([body], DEEP, "jsonl", inferred=inferred)
    assert len(found) == len(contents)
    for row, (cells, odd) in zip(contents, found, strict=True):
        accounted(row, cells, pa.struct(list(DEEP)), "", odd)
        assert odd == {}


@given(st.lists(record, max_size=6))
def test_rescue_changes_no_record_that_fits(contents: list[dict[str, Any]]) -> None:
    """Otherwise a user who changes the setting `mismatches` from `quarantine` to `rescue` would get other values in
    records without any mismatch.
    """
    body = b"".join(json.dumps(row).encode() + b"\n" for row in contents)
    kept, rejects = take([body], DEEP, "jsonl")
    assert len(kept) + len(rejects) == len(contents)
    both = {offset: row for _, offset, row in take([body], DEEP, "jsonl", mismatches="rescue")[0]}
    for _, offset, row in kept:
        assert {name: both[offset][name] for name in DEEP.names} == row


texts = st.sampled_from(["", "1", "-7", "1.5", "x", '"', "a,b", "l\nm", "NA", "\u00e9"])


@given(st.lists(st.lists(texts, min_size=1, max_size=5), max_size=6), st.booleans())
@example([["", "NA", ""]], True)
def test_no_csv_value_is_lost_by_rescue(contents: list[list[str]], inferred: bool) -> None:
    """Records may have more or fewer values than the header. If a value were neither in its column nor in `_rescued`,
    the table would lack the value, and no reject would show the loss.
    """
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(["a", "z", "b"])
    writer.writerows(contents)
    found = rescued([sink.getvalue().encode()], AB, "csv", inferred=inferred)
    assert len(found) == len(contents)
    for values, (row, odd) in zip(contents, found, strict=True):
        named = dict(zip(("a", "z", "b"), values, strict=False))
        a = named.get("a", "")
        assert odd.pop("a", a) == a
        assert row["a"] == (int(a) if a in ("1", "-7") else None)
        assert row["b"] == named.get("b")
        assert odd.pop("z", "") == named.get("z", "")
        assert json.loads(odd.pop("_extra", "[]")) == values[3:]
        assert json.loads(odd.pop("_missing", "[]")) == ["a", "z", "b"][len(values) :]
        assert odd == {}


@pytest.mark.parametrize(
    ("path", "text", "columns"),
    [
        ("a", "x", "a string"),
        ("a", "1.5", "a double"),
        ("lists[0][1]", "1.5", "lists array<array<double>>"),
        ("a", "99999999999999999999", "a string"),
        ("day", "1.5", "day string"),
        ("order id", "x", "`order id` string"),
        ("by", "x", "by string"),
        ("by.at", "2.5", "by struct<at double>"),
        ("by.all[3].n", "x", "by struct<all array<struct<n string>>>"),
        ("lists[0][1]", "x", "lists array<array<string>>"),
        ("lists[0]", "x", "lists array<string>"),
    ],
)
def test_a_reject_names_the_type_that_accepts_the_value(path: str, text: str, columns: str) -> None:
    """Otherwise nobody would know the remedy if all later objects are rejected because the first sample had a wrong
    type.
    """
    inner = pa.struct([("at", pa.int64()), ("all", pa.list_(pa.struct([("n", pa.int32())])))])
    lists = pa.list_(pa.list_(pa.int64()))
    schema = pa.schema(
        [("a", pa.int64()), ("order id", pa.int64()), ("day", pa.date32()), ("by", inner), ("lists", lists)]
    )
    reason = mismatch_reason(path, schema, "", "orders")(text)
    decimals = ", or decimal(p,s) in place of double" if "double" in columns else ""
    assert reason.endswith(f"to accept such values: `s3notify schema set orders '{columns}'`{decimals}")


@pytest.mark.parametrize("name", ["it's", "a\nb", "n" * 300])
def test_a_reject_of_an_odd_column_has_no_command_to_paste(name: str) -> None:
    """A pasted command must not run anything that a column's name contains."""
    reason = mismatch_reason(name, pa.schema([(name, pa.int64())]), "", "orders")("x")
    assert reason.endswith("; `s3notify schema set orders` changes the type of a column")
