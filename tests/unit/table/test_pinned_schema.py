"""The pinned schema: kept in the log's metadata, merged, and limited in size."""

import json
from typing import Any

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_COLUMNS, MAX_DEPTH, MAX_SCHEMA_BYTES
from s3notify_platform.table.pinned_schema import (
    NO_SCHEMA,
    SOURCE,
    TableSchema,
    added_fields,
    both_sources,
    described,
    grown,
    is_same,
    merged,
    schema_of,
)


def spark_schema(**columns: Any) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def pinned(known: TableSchema | None = None, *, inferred: bool = False, **columns: Any) -> TableSchema:
    schema = spark_schema(**columns)
    return grown(known, source=schema, rows=schema, inferred=inferred)


class TestPinned:
    def test_later_schema_keeps_the_columns_of_rows(self) -> None:
        """Otherwise a later parsing schema with fewer columns would remove columns from the table."""
        first = pinned(a="long")
        assert is_same(pinned(first, a="long"), first)
        second = pinned(first, b="long")
        assert json.loads(second.rows) == json.loads(spark_schema(a="long", b="long"))
        assert json.loads(second.source) == json.loads(spark_schema(b="long"))
        assert not is_same(second, first)
        assert not is_same(first, None)

    def test_contradiction_names_the_column(self) -> None:
        with pytest.raises(UsageError, match="column 'a' is bigint in the table and now string"):
            pinned(pinned(a="long"), a="string")

    @pytest.mark.parametrize("names", [("a",), ("a b", "c")])
    @pytest.mark.parametrize("derived", [False, True])
    def test_log_returns_the_schema_as_it_was_written(self, names: tuple[str, ...], *, derived: bool) -> None:
        """Otherwise a schema with mapped names would change when it is read back, or an empty table would have a
        schema.
        """
        inner = json.loads(spark_schema(**dict.fromkeys(names, "date")))
        schema = pinned(inferred=True, s=inner, **dict.fromkeys(names, "long"))
        metadata, _ = described(schema, created_ms=1, table="t", derived=derived)
        found = schema_of(metadata, derived=derived)
        assert is_same(schema, found)
        assert metadata.id == "t"
        assert schema_of(described(NO_SCHEMA, created_ms=1)[0]) is None

    def test_fields_of_two_concurrent_inferences_are_parsed(self) -> None:
        """Two writers may infer a schema at the same time. Otherwise one of them would stop reading fields that only
        the other writer found.
        """
        theirs = {SOURCE: spark_schema(a="long"), "x": "theirs", "y": "theirs"}
        mine = {SOURCE: spark_schema(a="double", b="string"), "x": "mine"}
        both = both_sources(theirs, mine)
        assert json.loads(both.pop(SOURCE)) == json.loads(spark_schema(a="long", b="string"))
        assert both == {"x": "mine", "y": "theirs"}
        assert both_sources({"x": "theirs"}, mine) == mine


class TestMerged:
    def test_fields_are_merged_at_any_depth(self) -> None:
        """Otherwise old fields would lose their type or place, or later rows without a field could not be stored."""

        def struct(*fields: tuple[str, Any], nullable: bool = True) -> dict[str, Any]:
            parts = [{"name": n, "type": t, "nullable": nullable, "metadata": {}} for n, t in fields]
            return {"type": "struct", "fields": parts}

        def array(kind: Any) -> dict[str, Any]:
            return {"type": "array", "elementType": kind, "containsNull": True}

        def table(kind: Any) -> dict[str, Any]:
            return {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True}

        old = struct(
            ("a", "long"),
            ("o", struct(("x", "long"), ("l", array(struct(("p", "long")))))),
            ("m", table(struct(("k", "long")))),
        )
        new = struct(
            ("m", table(struct(("k", "long"), ("w", "date")))),
            (
                "o",
                struct(
                    ("l", array(struct(("q", "string"), ("p", "long")))), ("x", "long"), ("y", array("long"))
                ),
            ),
            ("z", struct(("u", "long"))),
            nullable=False,
        )
        found = merged(json.dumps(old), json.dumps(new), strict=True)
        assert json.loads(found) == struct(
            ("a", "long"),
            (
                "o",
                struct(
                    ("x", "long"), ("l", array(struct(("p", "long"), ("q", "string")))), ("y", array("long"))
                ),
            ),
            ("m", table(struct(("k", "long"), ("w", "date")))),
            ("z", struct(("u", "long"))),
        ), found
        assert added_fields(json.dumps(old), found) == {
            "o.l[].q": "string",
            "o.y": "array<bigint>",
            "m.value.w": "date",
            "z": "struct<u bigint>",
        }
        assert json.loads(merged(found, json.dumps(old), strict=True)) == json.loads(found)
        lost = merged(json.dumps(struct(("a", "long"), nullable=False)), json.dumps(struct()), strict=True)
        assert json.loads(lost) == struct(("a", "long"))

    @pytest.mark.parametrize(
        ("inner", "reason"),
        [
            ("string", "'o.x' is bigint in the table and now string"),
            ({"type": "struct", "fields": []}, "'o.x' is bigint in the table and now struct<>"),
        ],
    )
    def test_contradiction_inside_a_column_names_its_path(self, inner: Any, reason: str) -> None:
        """Otherwise rows of two types would be in one column, or one nested field would stop the whole inference."""

        def outer(kind: Any) -> str:
            return spark_schema(o=json.loads(spark_schema(x=kind)))

        with pytest.raises(UsageError, match=reason):
            merged(outer("long"), outer(inner), strict=True)
        assert json.loads(merged(outer("long"), outer(inner), strict=False)) == json.loads(outer("long"))

    def test_names_that_differ_only_in_case_are_one_column(self) -> None:
        """Otherwise the table would get two columns that Spark cannot tell apart."""
        assert json.loads(merged(spark_schema(a="long"), spark_schema(A="long"), strict=False)) == json.loads(
            spark_schema(a="long")
        )
        with pytest.raises(UsageError, match="'A' differs from 'a'"):
            merged(spark_schema(a="long"), spark_schema(A="long"), strict=True)


class TestLimits:
    """The limits are checked before a schema is pinned.

    Inferred columns beyond the limits are left out. Declared columns beyond the limits are refused.
    """

    def test_columns_are_limited(self) -> None:
        many = spark_schema(**{f"c{n}": "long" for n in range(3001)})
        found = json.loads(merged(spark_schema(first="long"), many, strict=False, bounded=True))
        assert [field["name"] for field in found["fields"]] == [
            "first",
            *(f"c{n}" for n in range(MAX_COLUMNS - 1)),
        ]
        with pytest.raises(UsageError, match=f"3001 columns, but may have {MAX_COLUMNS}"):
            grown(None, source=many, rows=many, inferred=False)

    def test_columns_inside_columns_are_limited(self) -> None:
        inner = json.loads(spark_schema(**{f"c{n}": "long" for n in range(3000)}))
        outer = json.loads(spark_schema(s="long", l="long"))
        outer["fields"][0]["type"] = inner
        outer["fields"][1]["type"] = {"type": "array", "elementType": inner, "containsNull": True}
        found = json.loads(merged("{}", json.dumps(outer), strict=False, bounded=True))
        assert [field["name"] for field in found["fields"]] == ["s"]
        assert len(found["fields"][0]["type"]["fields"]) == MAX_COLUMNS - 1

    def test_bytes_are_limited(self) -> None:
        many = spark_schema(**{f"{n}" * 20_000: "long" for n in range(10, 99)})
        found = merged("{}", many, strict=False, bounded=True)
        assert MAX_SCHEMA_BYTES - 50_000 < len(found) <= MAX_SCHEMA_BYTES
        with pytest.raises(UsageError, match="bytes"):
            grown(None, source=many, rows="{}", inferred=False)

    def test_depth_is_limited(self) -> None:
        def nested(levels: int) -> str:
            kind: Any = "long"
            for _ in range(levels - 1):
                kind = {"type": "array", "elementType": kind, "containsNull": True}
            return json.dumps(
                json.loads(spark_schema(id="long"))["fields"][0] | {"name": "deep", "type": kind}
            )

        for levels in (MAX_DEPTH, MAX_DEPTH + 1):
            schema = '{"type":"struct","fields":[' + nested(levels) + "]}"
            found = json.loads(merged(spark_schema(id="long"), schema, strict=False, bounded=True))
            assert len(found["fields"]) == (2 if levels == MAX_DEPTH else 1)
        with pytest.raises(UsageError, match="levels"):
            grown(None, source=schema, rows="{}", inferred=False)

    def test_fields_of_a_new_column_that_differ_only_in_case_are_one(self) -> None:
        """Otherwise a new struct would have two fields that Spark cannot tell apart."""
        outer = json.loads(spark_schema(s="long"))
        outer["fields"][0]["type"] = json.loads(spark_schema(a="long", A="long"))
        found = json.loads(merged("{}", json.dumps(outer), strict=False, bounded=True))
        assert [field["name"] for field in found["fields"][0]["type"]["fields"]] == ["a"]
