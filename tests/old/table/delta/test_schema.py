"""Columns and types of the view."""

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from s3notify_platform.errors import UsageError
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.delta.format import delta_schema
from tests.support.clocks import HandClock
from tests.support.viewed import Place, Viewed, by_delta_rs, spark_schema
from tests.unit.table.delta.helpers import SLOTS, actions, ids, same

EVOLVED = spark_schema(id="long", name="string")


class TestSchema:
    def test_new_columns_come_before_the_files_that_have_them(self, viewed: Viewed, tmp_path: Path) -> None:
        """In one version; older files read as nulls, and the table keeps its id."""
        viewed.view.sync(SLOTS)
        viewed.pin(EVOLVED)
        viewed.append(2, ids(8, name=["x"]))
        viewed.view.sync(SLOTS)
        same(viewed, tmp_path)
        (first,), (second,) = actions(viewed, 0, "metaData"), actions(viewed, 1, "metaData")
        assert first["id"] == second["id"]
        assert first["createdTime"] == second["createdTime"]
        viewed.append(2, ids(9, name=["y"]))
        viewed.view.sync(SLOTS)
        assert actions(viewed, 2, "metaData") == []

    @pytest.mark.parametrize("name", ["s", "a s"])
    def test_fields_that_come_inside_of_a_column(self, viewed: Viewed, tmp_path: Path, name: str) -> None:
        """Null in older files; where names are mapped, no other column's id moves."""

        def grown(*names: str) -> str:
            inner = [{"name": n, "type": "string", "nullable": True, "metadata": {}} for n in names]
            kinds = {name: {"type": "struct", "fields": inner}, "z": "long"}
            return spark_schema(id="long", **kinds)

        for n, names in enumerate((["x"], ["x", "y"])):
            viewed.pin(grown(*names))
            viewed.append(3, ids(n, **{name: [dict.fromkeys(names, "v")]}))
            viewed.view.sync(SLOTS)
        found = by_delta_rs(Place(uri=viewed.copied_to(tmp_path)))
        assert {row["id"]: row[name] for row in found if row["slot"] == 3} == {
            0: {"x": "v", "y": None},
            1: {"x": "v", "y": "v"},
        }
        (before,), (after,) = actions(viewed, 0, "metaData"), actions(viewed, 1, "metaData")
        last = [json.loads(each["schemaString"])["fields"][-1]["metadata"] for each in (before, after)]
        assert last[0] == last[1]

    @pytest.mark.parametrize("name", ["amount", "the amount"])
    def test_columns_are_described(self, viewed: Viewed, tmp_path: Path, name: str) -> None:
        """Ours always, the user's as their DDL has it, also inside of a column and where names are mapped."""
        told = {"nullable": True, "metadata": {"comment": "Before tax"}}
        inner = {"type": "struct", "fields": [{"name": "net", "type": "double", **told}]}
        columns = [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]
        columns += [{"name": name, "type": inner, **told}]
        viewed.pin(json.dumps({"type": "struct", "fields": columns}))
        viewed.append(3, ids(1, **{name: [{"net": 1.0}]}))
        viewed.view.sync(SLOTS)
        fields = DeltaTable(viewed.copied_to(tmp_path)).schema().fields
        about = {field.name: field.metadata.get("comment") for field in fields}
        assert about["_key"] == "Key of the object that the row is from"
        assert (about["id"], about[name]) == (None, "Before tax")
        (nested,) = next(field for field in fields if field.name == name).type.fields
        assert nested.metadata["comment"] == "Before tax"

    def test_every_type_that_a_source_can_have(self, clock: HandClock, tmp_path: Path) -> None:
        """Decimals, zoned and local timestamps, dates, bytes, nested and repeated fields."""
        text = {"name": "s", "type": "string", "nullable": False, "metadata": {"a": 1}}
        kinds: dict[str, tuple[Any, pa.DataType, Any]] = {
            "a": ("byte", pa.int8(), -1),
            "b": ("short", pa.int16(), 300),
            "c": ("integer", pa.int32(), 70_000),
            "d": ("float", pa.float32(), 0.5),
            "e": ("double", pa.float64(), 0.1),
            "f": ("decimal(12,2)", pa.decimal128(12, 2), Decimal("12.34")),
            "g": ("boolean", pa.bool_(), True),
            "h": ("binary", pa.binary(), b"\x00\xff"),
            "i": ("date", pa.date32(), dt.date(2026, 2, 28)),
            "j": ("timestamp", pa.timestamp("us", "UTC"), dt.datetime(2026, 1, 1, 1, 2, 3, 4, dt.UTC)),
            "k": ("timestamp_ntz", pa.timestamp("us"), dt.datetime(2026, 1, 1, 1, 2, 3, 4)),
            "l": (
                {"type": "array", "elementType": "string", "containsNull": True},
                pa.list_(pa.string()),
                ["x", None],
            ),
            "m": (
                {"type": "struct", "fields": [text]},
                pa.struct([pa.field("s", pa.string(), nullable=False)]),
                {"s": "t"},
            ),
            "n": (
                {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True},
                pa.map_(pa.string(), pa.int64()),
                {"k": 1},
            ),
        }
        viewed = Viewed(store=MemoryObjectStore(), clock=clock)
        viewed.pin(spark_schema(**{name: kind for name, (kind, _, _) in kinds.items()}))
        viewed.append(1, pa.table({name: pa.array([v, None], t) for name, (_, t, v) in kinds.items()}))
        viewed.view.sync(SLOTS)
        same(viewed, tmp_path)

    def test_names_that_delta_keeps_for_itself_are_mapped(self, viewed: Viewed, tmp_path: Path) -> None:
        """The protocol is raised when the first of them comes, and then stays; ids never move."""
        viewed.view.sync(SLOTS)
        for n, name in enumerate(("Order ID", "a,b;c{d}(e)=\t\n")):
            viewed.pin(spark_schema(id="long", **{name: "string"}))
            viewed.append(3, ids(n, **{name: ["x"]}))
            viewed.view.sync(SLOTS)
        same(viewed, tmp_path)
        assert [len(actions(viewed, version, "protocol")) for version in (0, 1, 2)] == [1, 1, 1]
        versions = [actions(viewed, version, "protocol")[0]["minReaderVersion"] for version in (0, 1, 2)]
        assert versions == [1, 2, 2]

        def numbers(version: int) -> dict[str, int]:
            (metadata,) = actions(viewed, version, "metaData")
            fields = json.loads(metadata["schemaString"])["fields"]
            return {f["name"]: f["metadata"]["delta.columnMapping.id"] for f in fields}

        assert numbers(1).items() <= numbers(2).items()
        assert len({*numbers(2).values()}) == 7

    @pytest.mark.parametrize(
        ("columns", "reason"),
        [
            ({"slot": "string"}, "'slot'"),
            ({"SLOT": "string"}, "'SLOT'.*'slot' already"),
            ({"a": "long", "A": "long"}, "'A'.*'a' already"),
            ({"_KEY": "long"}, "'_KEY'.*'_key' already"),
            ({"v": "variant"}, "'v': Delta has no type variant"),
            ({"n": "void"}, "no type void"),
            ({"i": "interval day to second"}, "no type interval day to second"),
            (
                {"s": {"type": "struct", "fields": [{"name": "x", "type": "void"}]}},
                r"'s\.x': Delta has no type void",
            ),
            ({"u": {"type": "udt", "class": "x"}}, "no type udt"),
        ],
    )
    def test_what_delta_cannot_have(self, columns: dict[str, Any], reason: str) -> None:
        """Said plainly, with the column's name, before anything is written."""
        with pytest.raises(UsageError, match=reason):
            delta_schema(spark_schema(**columns))
