"""Columns from keys and from the store's metadata: values, mismatches, and wrong settings."""

import datetime as dt
import pickle
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ETag, ObjectMeta
from s3notify_platform.source.object_columns import HIVE_NULL, ObjectColumns
from s3notify_platform.source.source import Input
from s3notify_platform.stores.config import S3Config

BUCKET = S3Config(bucket="b")
UTC = dt.UTC


def input_of(**settings: Any) -> Input:
    return Input(**{"bucket": BUCKET, "format": "jsonl"} | settings)


def value_of(declared: str, key: str) -> Any:
    """Returns the value of the only column, and the texts that do not fit."""
    origin = ObjectColumns.of(declared, "")
    (column,) = origin.values([(key, None)])
    return column[0].as_py(), dict(origin.mismatched(key))


@pytest.mark.parametrize(
    ("declared", "key", "value"),
    [
        ("dt date", "raw/dt=2026-01-01/region=eu/a.json", dt.date(2026, 1, 1)),
        ("region string", "raw/dt=2026-01-01/region=eu/a.json", "eu"),
        ("region string", "raw/region=a%20b%2Fc%3D%C3%A9+d/a.json", "a b/c=é+d"),
        ("region string", "raw/region=größe 100%/a.json", "größe 100%"),
        ("region string", "raw/region=x=y/a.json", "x=y"),
        ("region string", "raw/region=/a.json", ""),
        ("region string", "raw/region=NULL/a.json", "NULL"),
        ("region string", f"raw/region={HIVE_NULL}/a.json", None),
        ("dt date", f"raw/dt={HIVE_NULL}/a.json", None),
        ("region string", "raw/a.json", None),
        ("region string", "raw/region=a.json", None),
        ("dt date", "raw/dt=no", None),
        ("region string", "raw/noregion=x/a.json", None),
        ("region string", "raw/region=a/region=b/a.json", "b"),
        ("Region string", "raw/REGION=a/a.json", "a"),
        ("`the part` string", "raw/the%20part=a/a.json", "a"),
        ("n int", "raw/n=007/a.json", 7),
        ("n bigint", f"raw/n={2**40}/a.json", 2**40),
        ("f double", "raw/f=1.5/a.json", 1.5),
        ("b boolean", "raw/b=true/a.json", True),
        ("d decimal(5,2)", "raw/d=1.25/a.json", Decimal("1.25")),
        ("at timestamp", "raw/at=2026-01-01 02%3A03%3A04/a.json", dt.datetime(2026, 1, 1, 2, 3, 4, tzinfo=UTC)),
        ("at timestamp_ntz", "raw/at=2026-01-01T02:03:04/a.json", dt.datetime(2026, 1, 1, 2, 3, 4)),
    ],
)  # fmt: skip
def test_parts_of_keys_become_values(declared: str, key: str, value: Any) -> None:
    assert value_of(declared, key) == (value, {})


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ("dt date", "2026-13-01"),
        ("dt date", ""),
        ("dt date", "NULL"),
        ("dt int", "x"),
        ("dt int", str(2**31)),
        ("dt decimal(3,2)", "10.00"),
        ("dt boolean", "yes"),
        ("dt timestamp", "yesterday"),
        ("dt string", "%FF"),
    ],
)
def test_parts_of_keys_that_do_not_fit_are_null_or_rejected(declared: str, text: str) -> None:
    """The unchanged text must be kept. With `quarantine`, the reason must name column, value and type."""
    key = f"raw/dt={text}/a.json"
    assert value_of(declared, key) == (None, {"dt": text})
    reason = input_of(partition_columns=declared).refusal(key)
    assert reason.startswith(f"dt: {text!r} does not fit")
    assert input_of(partition_columns=declared, mismatches="rescue").refusal(key) == ""
    assert input_of(partition_columns=declared).refusal("raw/a.json") == ""


@given(st.text().filter(lambda text: text != HIVE_NULL), st.sampled_from(["", "a/", "a=b/", "%/", "=/"]))
@example("%", "%/")
def test_any_escaped_text_survives(text: str, before: str) -> None:
    """The column must have exactly the text that a writer escaped, whatever else the key contains."""
    text = text.encode("utf-8", "replace").decode()
    assert value_of("x string", f"{before}x={quote(text, safe='')}/{before}o") == (text, {})


@given(st.text(alphabet="/=%x0123-", max_size=30))
def test_every_key_is_read_without_an_error(key: str) -> None:
    """Otherwise one object with an unusual key would make its slot fail. A column with a value must not count as a
    mismatch, because the object could then be rejected.
    """
    origin = ObjectColumns.of("x date, `0` int", "")
    values = [column[0].as_py() for column in origin.values([(key, None)])]
    assert len(values) == 2
    for column, value in zip(origin.paths.names, values, strict=True):
        assert value is None or column not in origin.mismatched(key)


def test_columns_have_the_order_of_the_settings() -> None:
    """Otherwise values of one column could appear under the name of another column. If there was no GET, the metadata
    columns are null.
    """
    origin = ObjectColumns.of("dt date, n tinyint", "_version, _modified,_size")
    assert origin.schema == pa.schema(
        [
            ("dt", pa.date32()), ("n", pa.int8()), ("_version", pa.string()),
            ("_modified", pa.timestamp("us", tz="UTC")), ("_size", pa.int64()),
        ]
    )  # fmt: skip
    meta = ObjectMeta(key="", etag=ETag("e"), size=3, modified_ms=1_767_225_600_123, version_id="v1")
    columns = origin.values([("n=1/dt=2026-01-01/a", meta), ("n=2/b", None)])
    assert [column.type for column in columns] == origin.schema.types
    assert [column.to_pylist() for column in columns] == [
        [dt.date(2026, 1, 1), None],
        [1, 2],
        ["v1", None],
        [dt.datetime(2026, 1, 1, microsecond=123_000, tzinfo=UTC), None],
        [3, None],
    ]


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"partition_columns": "dt"}, "partition_columns 'dt' does not parse: 'dt': give columns"),
        ({"partition_columns": "dt dat"}, "there is no type 'dat'"),
        ({"partition_columns": "dt date,"}, "a column is missing"),
        ({"partition_columns": "dt date -- day"}, "does not parse"),
        ({"partition_columns": "dt date NOT NULL"}, "'NOT' follows a type"),
        ({"partition_columns": "dt date, DT string"}, "'dt' is there twice"),
        ({"partition_columns": "_dt date"}, "names that begin with _ are reserved"),
        ({"partition_columns": "_key string"}, "names that begin with _ are reserved"),
        ({"partition_columns": "dt array<int>"}, "a part of a key cannot be array<int>"),
        ({"partition_columns": "dt binary"}, "a part of a key cannot be binary: use string"),
        ({"partition_columns": "dt varchar(3)"}, r"no column can have the type varchar\(3\) here"),
        ({"partition_columns": "dt interval"}, "no column can have the type interval here"),
        ({"partition_columns": "dt decimal(39,1)"}, r"no column can have the type decimal\(39,1\) here"),
        ({"partition_columns": "dt decimal(3,4)"}, r"no column can have the type decimal\(3,4\) here"),
        ({"partition_columns": "dt decimal(3, 2"}, r"no column can have the type decimal\(3,2 here"),
        ({"partition_columns": "dt date", "schema": "id int, `Dt` date"}, "'Dt' is a data column, and also in"),
        ({"partition_columns": "value date", "format": "text"}, "'value' is a data column"),
        ({"partition_columns": "id date", "schema_hints": "id int"}, "'id' is a data column"),
        ({"metadata_columns": "_etag"}, "use some of _modified, _size, _version, each once"),
        ({"metadata_columns": "_size,"}, "use some of"),
        ({"metadata_columns": "_size, _size"}, "each once"),
        ({"metadata_columns": "_size", "schema": "_size int"}, "a data column, and also in metadata_columns"),
        ({"schema_hints": "id int", "schema": "id int"}, "schema_hints 'id int': there is nothing to infer"),
        ({"schema_hints": "id int", "format": "text"}, "schema_hints 'id int': format text has columns of its own"),
        ({"schema_hints": "id"}, "schema_hints 'id' does not parse"),
        ({"schema_hints": "id int, ID int"}, "schema_hints 'id int, ID int': 'id' is there twice"),
        ({"schema_hints": "_key string"}, "'_key': the name is reserved"),
        ({"schema_hints": "m map<string,int>"}, "'m': format jsonl cannot have map"),
    ],
)  # fmt: skip
def test_wrong_declarations_of_object_columns_are_refused(settings: dict[str, str], reason: str) -> None:
    """Wrong settings must be refused when definitions load, before anything is read."""
    with pytest.raises(UsageError, match=reason):
        input_of(**settings)


def test_hints_accept_the_type_names_of_spark() -> None:
    """The hints must accept types in structs and lists too."""
    declared = "a DECIMAL(12, 2), b dec, c array<struct<x: int, y: timestamp>>, d struct<>, `e``f` long"
    assert input_of(schema_hints=declared).hints == pa.schema(
        [
            ("a", pa.decimal128(12, 2)),
            ("b", pa.decimal128(10, 0)),
            ("c", pa.list_(pa.struct([("x", pa.int32()), ("y", pa.timestamp("us", tz="UTC"))]))),
            ("d", pa.struct([])),
            ("e`f", pa.int64()),
        ]
    )


def test_object_columns_can_be_pickled() -> None:
    """Sources must be pickled, because they are sent to Spark's tasks."""
    given = input_of(partition_columns="dt date", metadata_columns="_size")
    assert pickle.loads(pickle.dumps(given)).object_columns == given.object_columns
