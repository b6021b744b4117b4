"""Schemas: pinned, merged, raced for."""

import json
from typing import Any

import pytest

from s3notify_platform.errors import ConflictError, CorruptError, UsageError
from s3notify_platform.limits import MAX_COLUMNS, MAX_DEPTH, MAX_SCHEMA_BYTES
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.schema import SchemaRegistry, added_fields, merged
from tests.support.clocks import HandClock
from tests.support.slot_writer import LAYOUT


def schema_of(**columns: str) -> str:
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


def registry(store: Any = None) -> SchemaRegistry:
    store = MemoryObjectStore() if store is None else store
    return SchemaRegistry(store, LAYOUT, NativeCommit(store))


class TestSchema:
    def test_pinned_and_advanced(self) -> None:
        schemas = registry()
        assert schemas.head() is None
        first = schemas.pin(source=schema_of(a="long"), rows=schema_of(a="long"), inferred=False)
        assert first is not None
        assert first.generation == 1
        assert schemas.pin(source=schema_of(a="long"), rows=schema_of(a="long"), inferred=False) == first
        second = schemas.pin(source=schema_of(b="long"), rows=schema_of(b="long"), inferred=False)
        assert second is not None
        assert second.generation == 2
        assert json.loads(second.rows) == json.loads(schema_of(a="long", b="long"))
        assert json.loads(second.source) == json.loads(schema_of(b="long"))
        assert schemas.head() == second

    def test_requests(self) -> None:
        store = CountingStore(MemoryObjectStore())
        schemas = registry(store)
        schemas.pin(source="{}", rows=schema_of(a="long"), inferred=False)
        store.counts.clear()
        schemas.pin(source="{}", rows=schema_of(a="long"), inferred=False)
        assert store.counts == {"LIST": 1, "GET": 1}

    def test_a_contradiction_names_the_column(self) -> None:
        schemas = registry()
        schemas.pin(source="{}", rows=schema_of(a="long"), inferred=False)
        with pytest.raises(UsageError, match="column 'a' is long in the table and now string"):
            schemas.pin(source="{}", rows=schema_of(a="string"), inferred=False)

    def test_an_inferred_source_covers_what_was_pinned(self) -> None:
        """Another run was first: the caller takes over its columns, and may add to them."""
        schemas = registry()
        schemas.pin(source=schema_of(a="long"), rows=schema_of(a="long"), inferred=True)
        mine = schema_of(a="double", b="string")
        assert schemas.pin(source=mine, rows=mine, inferred=True) is None
        head = schemas.head()
        assert head is not None
        ours = merged(head.source, mine, strict=False)
        assert json.loads(ours) == json.loads(schema_of(a="long", b="string"))
        pinned = schemas.pin(source=ours, rows=ours, inferred=True)
        assert pinned is not None
        assert pinned.generation == 2

    def test_merged_at_any_depth(self) -> None:
        """Old fields stand, with their types and places; new ones are nullable, and so is what later rows lack."""

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
            "o.y": "array<long>",
            "m.value.w": "date",
            "z": "struct<u: long>",
        }
        assert json.loads(merged(found, json.dumps(old), strict=True)) == json.loads(found)
        lost = merged(json.dumps(struct(("a", "long"), nullable=False)), json.dumps(struct()), strict=True)
        assert json.loads(lost) == struct(("a", "long"))

    @pytest.mark.parametrize(
        ("inner", "reason"),
        [
            ("string", "'o.x' is long in the table and now string"),
            ({"type": "struct", "fields": []}, "'o.x' is long in the table and now struct<>"),
        ],
    )
    def test_contradictions_inside(self, inner: Any, reason: str) -> None:
        """Refused with the path where rows would contradict; passed over where an object does."""

        def outer(kind: Any) -> str:
            return schema_of(o=json.loads(schema_of(x=kind)))

        with pytest.raises(UsageError, match=reason):
            merged(outer("long"), outer(inner), strict=True)
        assert json.loads(merged(outer("long"), outer(inner), strict=False)) == json.loads(outer("long"))

    def test_names_that_differ_by_case(self) -> None:
        """Spark cannot tell them apart."""
        assert json.loads(merged(schema_of(a="long"), schema_of(A="long"), strict=False)) == json.loads(
            schema_of(a="long")
        )
        with pytest.raises(UsageError, match="'A' differs from 'a'"):
            merged(schema_of(a="long"), schema_of(A="long"), strict=True)

    def test_history(self) -> None:
        """What each generation added, when and for whom; those written before it was noted are read too."""
        store = CountingStore(MemoryObjectStore())
        clock = HandClock()
        schemas = SchemaRegistry(store, LAYOUT, NativeCommit(store), clock=clock)
        first = schemas.pin(source="{}", rows=schema_of(a="long"), inferred=False, batch="one")
        second = schemas.pin(source="{}", rows=schema_of(b="date"), inferred=False, batch="two")
        assert first is not None
        assert second is not None
        assert (first.added, first.batch) == ({}, "one")
        assert (second.added, second.batch, second.created_ms) == ({"b": "date"}, "two", clock.wall_ms())
        store.put(
            LAYOUT.schema(3),
            json.dumps({"generation": 3, "source": "{}", "rows": "{}", "inferred": False}).encode(),
        )
        store.put(
            LAYOUT.schema(4),
            json.dumps(
                {"generation": 4, "source": "{}", "rows": "{}", "inferred": True, "later": 1}
            ).encode(),
        )
        store.counts.clear()
        found = schemas.history(after=1)
        assert [schema.generation for schema in found] == [4, 3, 2]
        assert found[2] == second
        assert found[1].added == {}
        assert store.counts == {"LIST": 1, "GET": 3}

    def test_racing_pins(self) -> None:
        """The slower of two that see no schema meets the other's, and adds its column to it."""
        memory = MemoryObjectStore()

        class Overtaken(CountingStore):
            done = False

            def put(self, key: str, body: bytes, **options: Any) -> Any:
                if not self.done:
                    self.done = True
                    registry(memory).pin(source="{}", rows=schema_of(a="long"), inferred=False)
                return super().put(key, body, **options)

        pinned = registry(Overtaken(memory)).pin(source="{}", rows=schema_of(b="long"), inferred=False)
        assert pinned is not None
        assert pinned.generation == 2
        assert json.loads(pinned.rows) == json.loads(schema_of(a="long", b="long"))

    def test_a_schema_that_never_stands_still(self) -> None:
        memory = MemoryObjectStore()

        class Overtaken(CountingStore):
            column = 0

            def put(self, key: str, body: bytes, **options: Any) -> Any:
                self.column += 1
                registry(memory).pin(
                    source="{}", rows=schema_of(**{f"c{self.column}": "long"}), inferred=False
                )
                return super().put(key, body, **options)

        with pytest.raises(ConflictError, match="kept changing"):
            registry(Overtaken(memory)).pin(source="{}", rows=schema_of(b="long"), inferred=False)

    @pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"generation": 2}'])
    def test_what_is_none_is_corrupt(self, body: bytes) -> None:
        store = MemoryObjectStore()
        store.put(LAYOUT.schema(1), body)
        with pytest.raises(CorruptError, match="not a schema object"):
            registry(store).head()

    def test_a_schema_under_another_name_is_corrupt(self) -> None:
        store = MemoryObjectStore()
        registry(store).pin(source="{}", rows="{}", inferred=False)
        store.copy(LAYOUT.schema(1), LAYOUT.schema(2))
        with pytest.raises(CorruptError, match="holds generation 1"):
            registry(store).head()


class TestLimits:
    """Checked before a schema is pinned: data adds no more, and what a person declares is refused."""

    def test_columns(self) -> None:
        many = schema_of(**{f"c{n}": "long" for n in range(3001)})
        found = json.loads(merged(schema_of(first="long"), many, strict=False, bounded=True))
        assert [field["name"] for field in found["fields"]] == [
            "first",
            *(f"c{n}" for n in range(MAX_COLUMNS - 1)),
        ]
        with pytest.raises(UsageError, match=f"3001 columns, and may have {MAX_COLUMNS}"):
            registry().pin(source=many, rows=many, inferred=False)

    def test_columns_inside(self) -> None:
        inner = json.loads(schema_of(**{f"c{n}": "long" for n in range(3000)}))
        outer = json.loads(schema_of(s="long", l="long"))
        outer["fields"][0]["type"] = inner
        outer["fields"][1]["type"] = {"type": "array", "elementType": inner, "containsNull": True}
        found = json.loads(merged("{}", json.dumps(outer), strict=False, bounded=True))
        assert [field["name"] for field in found["fields"]] == ["s"]
        assert len(found["fields"][0]["type"]["fields"]) == MAX_COLUMNS - 1

    def test_bytes(self) -> None:
        many = schema_of(**{f"{n}" * 20_000: "long" for n in range(10, 99)})
        found = merged("{}", many, strict=False, bounded=True)
        assert MAX_SCHEMA_BYTES - 50_000 < len(found) <= MAX_SCHEMA_BYTES
        with pytest.raises(UsageError, match="bytes"):
            registry().pin(source=many, rows="{}", inferred=False)

    def test_depth(self) -> None:
        def nested(levels: int) -> str:
            kind: Any = "long"
            for _ in range(levels - 1):
                kind = {"type": "array", "elementType": kind, "containsNull": True}
            return json.dumps(json.loads(schema_of(id="long"))["fields"][0] | {"name": "deep", "type": kind})

        for levels in (MAX_DEPTH, MAX_DEPTH + 1):
            schema = '{"type":"struct","fields":[' + nested(levels) + "]}"
            found = json.loads(merged(schema_of(id="long"), schema, strict=False, bounded=True))
            assert len(found["fields"]) == (2 if levels == MAX_DEPTH else 1)
        with pytest.raises(UsageError, match="levels"):
            registry().pin(source=schema, rows="{}", inferred=False)

    def test_twins_inside_of_a_new_field(self) -> None:
        """Spark ignores case there too."""
        outer = json.loads(schema_of(s="long"))
        outer["fields"][0]["type"] = json.loads(schema_of(a="long", A="long"))
        found = json.loads(merged("{}", json.dumps(outer), strict=False, bounded=True))
        assert [field["name"] for field in found["fields"][0]["type"]["fields"]] == ["a"]
