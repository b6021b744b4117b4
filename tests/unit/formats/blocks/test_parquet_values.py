"""Reasons of rejects of columnar files."""

from typing import Any

import pyarrow as pa
import pyarrow.orc as pa_orc
import pytest

from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.table.quarantined import Choice
from tests.support.avro import file_of
from tests.support.parsing import AB, parquet


def orc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pa_orc.write_table(table, sink)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def avro(value: Any, kind: Any) -> bytes:
    return file_of([{"a": value}], [{"name": "a", "type": kind}])


def reason_of(body: bytes, fmt: str, schema: pa.Schema = AB, *, name: str = "orders") -> str:
    """The reason of the file's only reject. `name`: as in `Target`."""
    found = [*FORMATS[fmt].parse([("k", body)], Target(schema=schema, inferred=bool(name), name=name))]
    (one,) = [reject for parsed in found for reject in parsed.rejects]
    return one.reason


@pytest.mark.parametrize(
    ("body", "fmt", "columns"),
    [
        (parquet(pa.table({"a": ["no"]})), "parquet", "a string"),
        (parquet(pa.table({"a": [1.5]})), "parquet", "a double"),
        (parquet(pa.table({"a": ["n" * 5000]})), "parquet", "a string"),
        (orc(pa.table({"a": ["no"]})), "orc", "a string"),
        (orc(pa.table({"a": [1.5]})), "orc", "a double"),
        (avro("no", "string"), "avro", "a string"),
        (avro(1.5, "double"), "avro", "a double"),
    ],
)
def test_a_reject_of_a_columnar_file_names_the_command(body: bytes, fmt: str, columns: str) -> None:
    """Otherwise nobody would know the remedy if the first sample had a wrong type. The retry after the command finds
    the reject by the column's name.
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


@pytest.mark.parametrize("value", [{"x": 1}, [1], b"\xff"])
def test_a_reject_of_a_value_without_a_text_names_no_type(value: Any) -> None:
    """A string column would reject the value, too."""
    assert reason_of(parquet(pa.table({"a": [value]})), "parquet").endswith(
        "; `s3notify schema set orders` changes the type of a column"
    )
