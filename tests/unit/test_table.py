"""The table over a store in memory: commit objects, states, heads, schemas, vacuum."""

import json
import secrets
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.errors import ConflictError, CorruptError, FencedError, UsageError
from s3notify_platform.protocols.conditional_commit import Committed, Lost, NativeCommit
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.slots import Slot
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import DENSE_PAGE, SlotCommit, SlotTable, TableFile
from s3notify_platform.table.layout import Generation, TableLayout, generation_of, inverted
from s3notify_platform.table.schema import SchemaRegistry, added_fields, merged
from s3notify_platform.table.states import (
    DELTA_LIMIT,
    PAGE_OBJECTS,
    StatePage,
    apply_deltas,
    decode_states,
    encode_states,
)
from s3notify_platform.table.vacuum import vacuum
from tests.support.simulation import VirtualTime
from tests.support.slot_writer import (
    LAYOUT,
    SLOT,
    Body,
    SlotWriter,
    content_in,
    content_of,
    history_of,
    slot_table,
)

names = st.text("0123456789abcdef", min_size=1, max_size=8)
keys = st.text(min_size=1, max_size=20)
states = st.builds(
    ObjectState,
    key=keys,
    etag=names,
    size=st.integers(0, 2**40),
    offset=st.integers(0, 2**40),
    reach_end=st.booleans(),
    rows=st.integers(0, 2**40),
    rejects=st.integers(0, 99),
    by_record=st.booleans(),
    since=st.integers(0, 99),
    until=st.integers(0, 99),
    reason=st.text(max_size=3),
) | keys.map(lambda key: ObjectState(key=key, etag="", size=0, gone=True))
files = st.lists(
    st.builds(
        TableFile, name=names, rows=st.integers(0, 9), bytes=st.integers(0, 9), since=st.integers(0, 9)
    ),
    max_size=3,
)
commits = st.builds(
    SlotCommit,
    slot=st.integers(0, 999).map(Slot),
    generation=st.integers(1, 10**18).map(Generation),
    commit_id=names,
    parent_id=st.none() | names,
    batch=st.text(max_size=5),
    created_ms=st.integers(0, 2**41),
    signal=st.none() | names,
    schema=st.integers(0, 9),
    source_generation=st.integers(0, 9),
    files=files.map(tuple),
    rejects=files.map(tuple),
    objects=st.integers(0, 9),
    pending=st.lists(keys, max_size=2).map(tuple),
    code_version=names,
    pages=st.lists(st.builds(StatePage, name=names, objects=st.integers(1, 9), first=keys), max_size=2).map(
        tuple
    ),
    deltas=st.lists(states, max_size=4).map(tuple),
)


class HandClock(VirtualTime):
    """Goes only when told to."""

    def random_bytes(self, count: int) -> bytes:
        return secrets.token_bytes(count)


def commit_of(generation: int, slot: Slot = SLOT, **fields: Any) -> SlotCommit:
    given = {"commit_id": f"c{generation}", "parent_id": f"c{generation - 1}" if generation > 1 else None}
    given |= {"slot": slot, "generation": generation, "batch": "b", "created_ms": 0}
    return SlotCommit(**(given | fields))


def write(table: SlotTable, *commits: SlotCommit) -> None:
    for commit in commits:
        assert isinstance(table.commit(commit, planned_at=table._clock.monotonic()), Committed)


class TestCommitObject:
    @given(commits)
    def test_round_trip(self, commit: SlotCommit) -> None:
        assert SlotCommit.loads(commit.dumps(), where="x") == commit

    def test_odd_keys(self) -> None:
        for key in (" ", "a\nb", '"\\', "日本🙂", "\x00", "k" * 1024):
            commit = commit_of(1, deltas=(ObjectState(key=key, etag="e", size=1),))
            assert SlotCommit.loads(commit.dumps(), where="x").deltas[0].key == key

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"{}",
            b'{"format": 2}',
            b"\xff",
            commit_of(1).dumps()[:-5],
            commit_of(1).dumps().replace(b'"slot"', b'"slut"'),
            commit_of(1, deltas=(ObjectState(key="k", etag="e", size=1),)).dumps().replace(b'"e",1,', b""),
        ],
    )
    def test_what_is_none_is_corrupt(self, body: bytes) -> None:
        with pytest.raises(CorruptError, match="somewhere: not a commit object"):
            SlotCommit.loads(body, where="somewhere")

    def test_a_newer_format_says_so(self) -> None:
        fields = json.loads(commit_of(1).dumps()) | {"format": 3}
        with pytest.raises(CorruptError, match="upgrade"):
            SlotCommit.loads(json.dumps(fields).encode(), where="x")


class TestStates:
    @given(st.lists(states, max_size=9))
    def test_base_round_trip(self, drawn: list[ObjectState]) -> None:
        live = apply_deltas({}, drawn)
        assert decode_states(encode_states(live)) == live

    @given(st.lists(st.lists(states, max_size=5), max_size=12), st.integers(1, 5))
    def test_carried_or_folded_they_are_the_same(self, rounds: list[list[ObjectState]], size: int) -> None:
        """Commit after commit, with 3 deltas and small pages: all of them, or any of them, are what was said."""
        table, live, head = slot_table(MemoryObjectStore()), {}, None
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("s3notify_platform.table.states.DELTA_LIMIT", 3)
            patch.setattr("s3notify_platform.table.states.PAGE_OBJECTS", size)
            for number, changed in enumerate(rounds):
                live = apply_deltas(live, changed)
                pages, deltas = table.carry(SLOT, head, changed)
                assert len(deltas) <= 3
                assert all(1 <= each.objects <= size for each in pages)
                assert [each.first for each in pages] == sorted({each.first for each in pages})
                head = commit_of(number + 1, pages=pages, deltas=deltas)
                assert table.states(head) == live
                for key in [*live, "not there", *(state.key for state in changed)]:
                    assert table.states(head, {key}) == ({key: live[key]} if key in live else {})

    def test_a_change_costs_its_page_not_the_slot(self) -> None:
        """Of a slot of many objects, those pages are written that changes fall in, and one page is read for a key."""
        store = CountingStore(MemoryObjectStore())
        table = slot_table(store)
        many = [ObjectState(key=f"{n:06}", etag="e", size=n) for n in range(10 * PAGE_OBJECTS)]
        pages, deltas = table.carry(SLOT, None, many)
        assert (len(pages), deltas) == (10, ())
        head = commit_of(1, pages=pages, objects=len(many))
        store.counts.clear()
        assert table.states(head, {"000007"})["000007"].size == 7
        assert store.counts == {"GET": 1}
        changed = [ObjectState(key=f"{n:06}", etag="f", size=0) for n in range(DELTA_LIMIT + 1)]
        store.counts.clear()
        after, deltas = table.carry(SLOT, head, changed)
        assert store.counts == {"GET": 1, "PUT": 1}
        assert after[1:] == pages[1:]
        assert deltas == ()

    def test_folding_at_the_limit(self) -> None:
        table = slot_table(MemoryObjectStore())
        many = [ObjectState(key=f"{n}", etag="e", size=n) for n in range(DELTA_LIMIT)]
        pages, deltas = table.carry(SLOT, None, many)
        assert (pages, len(deltas)) == ((), DELTA_LIMIT)
        more = ObjectState(key="one more", etag="e", size=0)
        pages, deltas = table.carry(SLOT, commit_of(1, deltas=deltas), [more])
        assert (len(pages), deltas) == (1, ())
        assert table.states(commit_of(2, pages=pages)) == {s.key: s for s in [*many, more]}

    def test_a_lost_page_is_not_a_fresh_start(self) -> None:
        table = slot_table(MemoryObjectStore())
        lost = StatePage(name="lost", objects=1, first="a")
        with pytest.raises(CorruptError, match="refusing to start it anew"):
            table.states(commit_of(1, pages=(lost,)))
        assert table.states(None) == {}


class TestHead:
    def test_requests(self) -> None:
        """Head: 1 LIST of one key and 1 GET; states without a base: none; a commit: 1 PUT."""
        store = CountingStore(MemoryObjectStore())
        table = slot_table(store)
        assert table.head(SLOT) is None
        write(table, commit_of(1), commit_of(2))
        assert store.counts == {"LIST": 1, "PUT": 2}
        store.counts.clear()
        head = table.head(SLOT)
        assert head == commit_of(2)
        table.states(head)
        assert store.counts == {"LIST": 1, "GET": 1}

    def test_newest_sorts_first(self) -> None:
        generations = [1, 2, 9, 10, 11, 999, 1000, 10**18]
        assert sorted(generations, key=inverted) == generations[::-1]
        assert [generation_of(LAYOUT.commit(SLOT, g)) for g in generations] == generations

    def test_a_missing_predecessor_is_an_error(self) -> None:
        table = slot_table(MemoryObjectStore())
        write(table, commit_of(1), commit_of(2))
        table.store.delete(LAYOUT.commit(SLOT, 1))
        with pytest.raises(CorruptError, match="generation 1 of slot 7 is missing"):
            table.read(SLOT, Generation(1))

    def test_foreign_objects_are_named(self) -> None:
        table = slot_table(MemoryObjectStore())
        table.store.put(LAYOUT.commits(SLOT) + "!readme", b"")
        with pytest.raises(CorruptError, match="readme"):
            table.head(SLOT)

    def test_a_head_that_vacuum_took_in_between(self) -> None:
        """Between its LIST and its GET a newer one appears and the old one goes: it is read again."""
        memory = MemoryObjectStore()
        table = slot_table(memory)
        write(table, commit_of(1))

        class Moving(CountingStore):
            def get(self, key: str, **conditions: Any) -> Any:
                if memory.head(LAYOUT.commit(SLOT, 1)):
                    write(slot_table(memory), commit_of(2))
                    memory.delete(LAYOUT.commit(SLOT, 1))
                return super().get(key, **conditions)

        assert slot_table(Moving(memory)).head(SLOT) == commit_of(2)

    def test_a_head_that_never_stands_still(self) -> None:
        class Moving(CountingStore):
            generation = 1

            def get(self, key: str, **conditions: Any) -> Any:
                self.store.delete(LAYOUT.commit(SLOT, self.generation))
                self.generation += 1
                self.store.put(LAYOUT.commit(SLOT, self.generation), b"")
                return super().get(key, **conditions)

        store = Moving(MemoryObjectStore())
        store.put(LAYOUT.commit(SLOT, 1), b"")
        with pytest.raises(ConflictError, match="moved three times"):
            slot_table(store).head(SLOT)

    def test_a_head_that_is_listed_and_lost(self) -> None:
        class Losing(CountingStore):
            def get(self, key: str, **conditions: Any) -> Any:
                return None

        store = Losing(MemoryObjectStore())
        store.put(LAYOUT.commit(SLOT, 1), b"")
        with pytest.raises(CorruptError, match="is missing"):
            slot_table(store).head(SLOT)


class TestNewest:
    def test_a_young_table_takes_one_list(self) -> None:
        store = CountingStore(MemoryObjectStore())
        table = slot_table(store)
        for slot in (0, 1, 10, 100, 2, 99):
            write(table, *(commit_of(g + 1, Slot(slot)) for g in range(slot % 3 + 1)))
        store.counts.clear()
        wanted = [Slot(n) for n in (0, 1, 2, 3, 10, 11, 100, 999)]
        assert table.newest(wanted) == {0: 1, 1: 2, 2: 3, 3: 0, 10: 2, 11: 0, 100: 2, 999: 0}
        assert store.counts == {"LIST": 1}
        assert table.newest([]) == {}

    @pytest.mark.parametrize("generations", [1, 3, 30])
    def test_pages(self, generations: int) -> None:
        """As many LISTs as pages that tell of enough slots, one more, and never a wrong answer."""
        memory = MemoryObjectStore()
        for slot in range(400):
            for g in range(1, generations + slot % 2):
                memory.put(LAYOUT.commit(Slot(slot), g), b"")
        store = CountingStore(memory)
        told = slot_table(store).newest([Slot(n) for n in range(1000)])
        known = {slot: generation for slot, generation in told.items() if generation is not None}
        assert all(g == (generations + s % 2 - 1 if s < 400 else 0) for s, g in known.items())
        assert len(told) == 1000
        assert len(known) == 1000 or len(known) <= DENSE_PAGE * store.counts["LIST"] + DENSE_PAGE
        assert store.counts["LIST"] <= len(known) / DENSE_PAGE + 1


class TestCommitting:
    def test_one_winner(self) -> None:
        table = slot_table(MemoryObjectStore())
        write(table, commit_of(1))
        assert table.commit(commit_of(1, commit_id="late"), planned_at=table._clock.monotonic()) == Lost()

    def test_a_run_that_lived_too_long_commits_nothing(self) -> None:
        time = HandClock()
        table = slot_table(MemoryObjectStore(), time, max_run_seconds=10)
        with pytest.raises(FencedError, match="plan again"):
            table.commit(commit_of(1), planned_at=-11)
        assert table.head(SLOT) is None

    @pytest.mark.parametrize(("next_parent", "fenced"), [("c1", False), ("other", True), (None, False)])
    def test_a_write_that_took_too_long_looks_back(self, next_parent: str | None, *, fenced: bool) -> None:
        """It landed after the run's time was over: it counts only if what came later descends from it."""
        time = HandClock()
        memory = MemoryObjectStore()

        class Slow(CountingStore):
            def put(self, key: str, body: bytes, **options: Any) -> Any:
                written = super().put(key, body, **options)
                time.now += 100
                for generation in (2, 3) if next_parent else ():
                    parent = next_parent if generation == 2 else "c2"
                    later = commit_of(generation, parent_id=parent)
                    memory.put(LAYOUT.commit(SLOT, generation), later.dumps())
                return written

        table = slot_table(Slow(memory), time, max_run_seconds=10)
        if fenced:
            with pytest.raises(FencedError, match="beside a newer history"):
                table.commit(commit_of(1), planned_at=0)
        else:
            assert isinstance(table.commit(commit_of(1), planned_at=0), Committed)

    @pytest.mark.parametrize("prefix", ["no-slash", "/t/", "a//b/", ""])
    def test_prefixes_that_cannot_be(self, prefix: str) -> None:
        with pytest.raises(UsageError, match="table prefix"):
            TableLayout(prefix=prefix)


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
        """What each generation added, when and for whom; those written before it was told are read too."""
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


class Aging:
    """A slot whose runs and vacuums happen at chosen times."""

    def __init__(self) -> None:
        self.time = HandClock()
        self.store = MemoryObjectStore(clock=self.time)
        self.table = slot_table(self.store, self.time, max_run_seconds=100)
        self.writer = SlotWriter(store=self.store, clock=self.time)
        self.bucket: dict[str, Body] = {}

    def run(self, **bodies: Body) -> None:
        self.bucket |= bodies
        assert isinstance(self.writer.run(self.bucket), Committed)

    def vacuum(self, retention_seconds: float = 100) -> Any:
        return vacuum(self.table, retention_seconds=retention_seconds, clock=self.time)

    def names(self) -> set[str]:
        return {key.removeprefix(LAYOUT.prefix) for key in self.store._objects}


class TestVacuum:
    def test_keeps_what_is_young_and_what_is_live(self) -> None:
        aging = Aging()
        for version in range(4):
            aging.run(a=Body(etag=f"{version}", rows=1, rejects=1))
            aging.time.now += 60
        before = aging.names()
        report = aging.vacuum()
        # Superseded 180 and 120 s ago: gone. Superseded 60 s ago, and the head: kept.
        assert report.commits_removed == 1 + 1
        assert report.commits_kept == 2
        assert report.files_removed == 4
        assert report.files_kept == 4
        assert aging.names() < before
        assert content_in(aging.table) == content_of(aging.bucket)
        head = aging.table.head(SLOT)
        assert head is not None
        assert aging.table.read(SLOT, Generation(head.generation - 1)).generation == 3

    def test_a_head_is_kept_however_old(self) -> None:
        aging = Aging()
        aging.run(a=Body(etag="1", rows=2))
        aging.time.now += 10_000
        report = aging.vacuum()
        assert (report.commits_removed, report.files_removed) == (0, 0)
        assert content_in(aging.table) == content_of(aging.bucket)

    def test_pages_that_are_named_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("s3notify_platform.table.states.DELTA_LIMIT", 0)
        aging = Aging()
        for version in range(3):
            aging.run(a=Body(etag=f"{version}", rows=1))
            aging.time.now += 200
        aging.vacuum()
        assert len([name for name in aging.names() if name.startswith("state/")]) == 1
        assert content_in(aging.table) == content_of(aging.bucket)

    def test_files_of_a_run_that_has_not_committed_stay(self) -> None:
        """It may commit yet: its files are young. When it no longer may, they are old enough to go."""
        aging = Aging()
        aging.run(a=Body(etag="1", rows=1))
        aging.bucket["b"] = Body(etag="1", rows=1)
        planned = aging.writer.plan(aging.bucket)
        commit = aging.writer.seal(planned, aging.bucket)
        assert commit is not None
        aging.time.now += 99
        assert aging.vacuum().files_removed == 0
        assert isinstance(aging.writer.commit(planned, commit), Committed)
        assert content_in(aging.table) == content_of(aging.bucket)

    def test_a_sleeper_cannot_create_an_old_generation_anew(self) -> None:
        """It sleeps while others commit and vacuum removes the generation it planned; it wakes up, and is fenced."""
        aging = Aging()
        aging.run(a=Body(etag="1", rows=1))
        sleeper = SlotWriter(store=aging.store, clock=aging.time)
        sleeper.table = aging.table
        aging.bucket["b"] = Body(etag="1", rows=1)
        planned = sleeper.plan(aging.bucket)
        commit = sleeper.seal(planned, aging.bucket)
        assert commit is not None
        for version in range(2, 5):
            aging.run(a=Body(etag=f"{version}", rows=1))
            aging.time.now += 60
        aging.time.now += 100
        aging.vacuum()
        assert aging.store.head(LAYOUT.commit(SLOT, commit.generation)) is None, "the place is free again"
        with pytest.raises(FencedError):
            sleeper.commit(planned, commit)
        assert content_in(aging.table) == content_of(aging.bucket)

    def test_at_any_age_that_a_run_may_have_its_generation_is_taken(self) -> None:
        """Whenever a run may still commit, vacuum has left what would make it lose."""
        for sleep in range(0, 101, 10):
            aging = Aging()
            aging.run(a=Body(etag="1", rows=1))
            aging.bucket["b"] = Body(etag="1", rows=1)
            planned = aging.writer.plan(aging.bucket)
            commit = aging.writer.seal(planned, aging.bucket)
            assert commit is not None
            aging.time.now += sleep / 2
            aging.run(a=Body(etag="2", rows=1))
            aging.run(a=Body(etag="3", rows=1))
            aging.time.now += sleep / 2
            aging.vacuum()
            assert aging.table.commit(commit, planned_at=planned.at) == Lost()
            assert len(history_of(aging.table)) == 3

    def test_refuses_a_retention_shorter_than_a_run(self) -> None:
        with pytest.raises(UsageError, match="shorter than a run may live"):
            Aging().vacuum(99)

    def test_derived_fields_of_a_report(self) -> None:
        aging = Aging()
        aging.run(a=Body(etag="1", rows=1))
        orphan = LAYOUT.data(SLOT, "orphan")
        aging.store.put(orphan, b"12345")
        aging.time.now += 101
        report = aging.vacuum()
        assert (report.files_removed, report.bytes_removed) == (1, 5)
        assert aging.store.head(orphan) is None
        assert not [name for name in aging.names() if name.startswith("vacuum/")]


def test_replace_keeps_commits_apart() -> None:
    """Rows are those of the live files."""
    two = (TableFile(name="x", rows=2, bytes=1), TableFile(name="y", rows=3, bytes=1))
    assert replace(commit_of(1), files=two).rows == 5
