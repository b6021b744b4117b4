"""Rows and rejects of columnar files: a bad value affects only its row, and no field is lost."""

import json
from typing import Any

import pyarrow as pa
import pyarrow.orc as pa_orc
import pyarrow.parquet as pq
import pytest

from s3notify_platform.formats.inference import infer
from s3notify_platform.formats.records import Parsed, Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.quarantined import Choice
from tests.support.avro import file_of
from tests.support.parsing import AB, parquet, take


def orc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pa_orc.write_table(table, sink)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def avro(value: Any, kind: Any) -> bytes:
    return file_of([{"a": value}], [{"name": "a", "type": kind}])


def avro_file(table: pa.Table) -> bytes:
    kinds = {pa.int64(): "long", pa.string(): "string", pa.float64(): "double"}

    def kind_of(kind: pa.DataType, path: str) -> Any:
        if pa.types.is_map(kind):
            found: Any = {"type": "map", "values": kind_of(kind.item_type, path)}
        elif pa.types.is_struct(kind):
            fields = [{"name": part.name, "type": kind_of(part.type, path + part.name)} for part in kind]
            found = {"type": "record", "name": f"r{path}", "fields": fields}
        else:
            found = kinds[kind]
        return ["null", found]

    rows = table.to_pylist(maps_as_pydicts="strict")
    return file_of(
        rows, [{"name": column.name, "type": kind_of(column.type, column.name)} for column in table.schema]
    )


FILES = {"parquet": parquet, "orc": orc, "avro": avro_file}


def reason_of(body: bytes, fmt: str, schema: pa.Schema = AB, *, name: str = "orders") -> str:
    """The reason of the file's only reject. `name`: the source's name, as in `Target`."""
    found = [*FORMATS[fmt].parse([("k", body)], Target(schema=schema, inferred=bool(name), name=name))]
    (one,) = [reject for parsed in found for reject in parsed.rejects]
    return one.reason


@pytest.mark.parametrize(
    ("body", "fmt", "columns"),
    [
        (parquet(pa.table({"a": ["no"]})), "parquet", "a string"),
        (parquet(pa.table({"a": [1.5]})), "parquet", "a double"),
        (parquet(pa.table({"a": ["n" * 5000]})), "parquet", "a string"),
        (parquet(pa.table({"a": [{"x": [b"\xff", None]}]})), "parquet", "a string"),
        (
            parquet(pa.table({"a": pa.array([[("k", 1.5)]], pa.map_(pa.string(), pa.float64()))})),
            "parquet",
            "a string",
        ),
        (orc(pa.table({"a": ["no"]})), "orc", "a string"),
        (orc(pa.table({"a": [1.5]})), "orc", "a double"),
        (avro("no", "string"), "avro", "a string"),
        (avro(1.5, "double"), "avro", "a double"),
    ],
)
def test_a_reject_of_a_columnar_file_names_the_command(body: bytes, fmt: str, columns: str) -> None:
    """Otherwise nobody would know the remedy if the first sample had a wrong type. After the command, a retry finds the
    reject by the column's name.
    """
    reason = reason_of(body, fmt)
    command = f"`s3notify schema set orders '{columns}'`"
    command += ", or decimal(p,s) in place of double" if "double" in columns else ""
    assert "column 'a' does not fit bigint: " in reason
    assert reason.endswith(f"; to accept such values: {command}")
    assert Choice(columns=("a",)).has(ObjectState(key="k", etag="e", size=1, reason=reason))
    assert "s3notify" not in reason_of(body, fmt, name=""), "declared types are changed in the declaration"
    for kind in {"a string": [pa.string()], "a double": [pa.float64(), pa.decimal128(9, 2)]}[columns]:
        (parsed,) = FORMATS[fmt].parse([("k", body)], Target(schema=pa.schema([("a", kind)])))
        assert (parsed.table.num_rows, parsed.rejects) == (1, []), "the command must be a remedy"


@pytest.mark.parametrize(
    ("value", "kind"), [(b"\xff", pa.int64()), (b"\xff", pa.string()), ([1.5], pa.list_(pa.int64()))]
)
def test_a_reject_without_a_certain_remedy_names_no_type(value: Any, kind: pa.DataType) -> None:
    """A string column would reject bytes, too. And a column of lists would become a column of texts."""
    assert reason_of(parquet(pa.table({"a": [value]})), "parquet", pa.schema([("a", kind)])).endswith(
        "; `s3notify schema set orders` changes the type of a column"
    )


@pytest.mark.parametrize("fmt", FILES)
def test_only_rows_with_bad_values_are_rejected(fmt: str) -> None:
    """Otherwise one bad value would keep the good rows of its file out of the table. A row with bad values in two
    columns must be one reject, so that the quarantine counts each row once.
    """
    texts = [str(n) if n not in (5, 57) else "no" for n in range(100)]
    numbers = [float(n) if n not in (57, 99) else 0.5 for n in range(100)]
    body = FILES[fmt](pa.table({"a": texts, "n": numbers}))
    schema, seen = pa.schema([("a", pa.int64()), ("n", pa.int64())]), list[Parsed]()
    rows, rejects = take([body], schema, fmt, seen=seen)
    assert [row["a"] for _, _, row in rows] == [n for n in range(100) if n not in (5, 57, 99)]
    assert [reject.reason.rpartition("column ")[2] for reject in rejects] == [
        "'a' does not fit bigint: string 'no'",
        "'a' does not fit bigint: string 'no'",
        "'n' does not fit bigint: double '0.5'",
    ]
    assert [parsed.mismatches for parsed in seen] == [{0: {"a": 2, "n": 2}}]
    if fmt != "avro":  # a record of Avro has bytes of its own
        assert [json.loads(reject.raw) for reject in rejects] == [
            {"a": "no", "n": 5.0},
            {"a": "no", "n": 0.5},
            {"a": "99", "n": 0.5},
        ]
        assert [reject.offset for reject in rejects] == [5, 57, 99]
    rescued, rejects = take([body], schema, fmt, mismatches="rescue")
    assert rejects == []
    assert [offset for _, offset, row in rescued if row["_rescued"] is None] == [
        offset for _, offset, _ in rows
    ]


def test_rejects_of_later_row_groups_have_the_row_of_the_file() -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"a": [str(n) if n % 4 else "no" for n in range(10)]}), sink, row_group_size=3)
    rows, rejects = take([sink.getvalue().to_pybytes()], AB, "parquet")
    assert [reject.offset for reject in rejects] == [0, 4, 8]
    assert [(offset, row["a"]) for _, offset, row in rows] == [(n, n) for n in range(10) if n % 4]


@pytest.mark.parametrize("fmt", FILES)
def test_only_rows_with_new_fields_are_rejected(fmt: str) -> None:
    body = FILES[fmt](pa.table({"a": [1, 2, 3], "z": pa.array([None, 7, None], pa.int64())}))
    rows, (one,) = take([body], AB, fmt, inferred=True)
    assert [row["a"] for _, _, row in rows] == [1, 3]
    assert "field 'z' is not in the schema" in one.reason


@pytest.mark.parametrize("fmt", FILES)
def test_new_fields_in_values_of_maps_are_found(fmt: str) -> None:
    """Otherwise nobody would notice the loss of fields that writers add inside of a map. Such fields must be counted,
    rescued by the setting `rescue`, and added to an inferred schema.
    """

    def maps(*names: str) -> pa.DataType:
        return pa.map_(pa.string(), pa.struct([(name, pa.int64()) for name in names]))

    schema = pa.schema([("id", pa.int64()), ("m", maps("x"))])
    entries = [("k", {"x": 1, "y": None}), ("l", {"x": 2, "y": 3})]
    values = pa.array([None, [("k", {"x": 1, "y": None})], entries, []], maps("x", "y"))
    body, seen = FILES[fmt](pa.table({"id": [0, 1, 2, 3], "m": values})), list[Parsed]()
    rescued, _ = take([body], schema, fmt, mismatches="rescue", seen=seen)
    assert [row["_rescued"] for _, _, row in rescued] == [None, None, '{"m[1].value.y":"3"}', None]
    assert rescued[2][2]["m"] == [("k", {"x": 1}), ("l", {"x": 2})]
    assert take([body], schema, fmt, seen=seen)[1] == []
    rows, (one,) = take([body], schema, fmt, inferred=True, seen=seen)
    assert [row["id"] for _, _, row in rows] == [0, 1, 3]
    assert "field 'm.value.y' is not in the schema" in one.reason
    assert [parsed.unnamed for parsed in seen] == [{0: {"m.value.y": 1}}] * 3
    wider = infer(seen[-1].new_fields)
    assert wider is not None
    assert wider.field("m").type == maps("x", "y")
    grown = pa.schema([("id", pa.int64()), ("m", maps("x", "y"))])
    assert len(take([body], grown, fmt, inferred=True)[0]) == 4


def test_new_fields_in_keys_of_maps_are_found() -> None:
    kind = pa.map_(pa.struct([("x", pa.int64()), ("y", pa.int64())]), pa.int64())
    body = parquet(pa.table({"m": pa.array([[({"x": 1, "y": 2}, 3)]], kind)}))
    schema = pa.schema([("m", pa.map_(pa.struct([("x", pa.int64())]), pa.int64()))])
    ((_, _, row),), _ = take([body], schema, "parquet", mismatches="rescue")
    assert row == {"m": [({"x": 1}, 3)], "_rescued": '{"m[0].key.y":"2"}'}
