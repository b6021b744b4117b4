"""The requests of a warm round on a table with 1000 slots, counted by kind. These requests are the table's share of a
round's requests.
"""

from collections import Counter

import pyarrow as pa
import pytest

from s3notify_platform.kernel.ports import list_all
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.commit import Committed
from s3notify_platform.table.packs.round_packs import write
from s3notify_platform.table.round import RoundChange, SlotRound
from s3notify_platform.table.snapshot import Snapshot
from tests.support.log_rounds import SCHEMA
from tests.support.log_tables import LAYOUT, Table


class KindsStore(DelegatingStore):
    """A store that counts requests by method and folder."""

    def __init__(self, store):
        super().__init__(store)
        self.counts = Counter()

    def _count(self, method, key):
        folder = key.removeprefix(LAYOUT.own).removeprefix(LAYOUT.prefix).split("/")[0]
        self.counts[f"{method} {folder.strip('_').removeprefix('s3notify-')}"] += 1

    def get(self, key, **given):
        self._count("GET", key)
        return self.store.get(key, **given)

    def get_range(self, key, start, end):
        self._count("GET", key)
        return self.store.get_range(key, start, end)

    def head(self, key):
        self._count("HEAD", key)
        return self.store.head(key)

    def put(self, key, body, **given):
        self._count("PUT", key)
        return self.store.put(key, body, **given)

    def list(self, prefix, **given):
        self._count("LIST", prefix)
        return self.store.list(prefix, **given)


PROBE = {"LIST delta_log": 1, "GET known": 1}
VERSION = {"PUT manifest": 1, "PUT delta_log": 1, "PUT known": 1}


class Process:
    """A warm process that ingests objects by their keys, like an engine."""

    def __init__(self, store):
        self.store = KindsStore(store)
        self.table = Table(store=self.store)
        self.whole = self.table.whole
        self.table.opened()

    def round(self, keys, etag):
        """Commits new or overwritten objects, each with two rows. Returns the requests."""
        self.store.counts.clear()
        base = self.whole.newest()
        assert isinstance(base, Snapshot)
        by_slot = {}
        for key in sorted(keys):
            by_slot.setdefault(slot_of(key), []).append(key)
        held = self.whole.states.lookup(base.manifest.states, by_slot)
        label = base.version + 1
        rows = [
            (slot, key, etag, offset, offset)
            for slot in sorted(by_slot)
            for key in by_slot[slot]
            for offset in range(2)
        ]
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
        ]
        staged, files = self.whole.data.staged(write([pa.table(columns, SCHEMA)]), label=label)
        for key, body in files.items():
            self.store.put(key, body)
        slots = {
            slot: SlotRound(
                changes={
                    key: ObjectState(key=key, etag=etag, size=1, rows=2, since=label, until=label)
                    for key in some
                },
                before={key: held[key] for key in some if key in held},
            )
            for slot, some in by_slot.items()
        }
        change = RoundChange(base=base, slots=slots, table=self.whole, clock=self.table.clock, rows=staged)
        assert isinstance(self.whole.commit(change, base), Committed)
        return dict(self.store.counts)


KEYS = [f"raw/{n:06}.json" for n in range(20_000)]


@pytest.fixture(scope="module")
def table():
    """A table with some packs and state files."""
    store = MemoryObjectStore()
    writer = Process(store)
    for start in range(0, 20_000, 5000):
        writer.round(KEYS[start : start + 5000], "e0")
    return store


@pytest.fixture
def process(table, monkeypatch):
    """A warm process. All state files count as large, so the process has their filters in its cache, but none of their
    pages.
    """
    monkeypatch.setattr("s3notify_platform.table.states.state_reader.STATE_WHOLE_BYTES", 0)
    store = MemoryObjectStore()
    for meta in list_all(table, ""):
        store.put(meta.key, table.get(meta.key).body)
    found = Process(store)
    found.round(["raw/warm.json"], "e0")
    return found


def test_no_states_and_no_packs_are_read_for_a_new_object(process):
    """Otherwise each new object would cost additional requests."""
    assert process.round(["raw/new.json"], "e1") == {**PROBE, "PUT data": 1, **VERSION}


def test_one_page_is_read_and_one_pack_is_rewritten_for_an_overwritten_object(process):
    """Otherwise an overwrite would read more than the object's page of states and the pack of its rows."""
    found = process.round([KEYS[7]], "e1")
    assert found == {**PROBE, "GET state": 1, "GET data": 1, "PUT data": 2, **VERSION}
    # The object's state is now in the manifest. The object's rows are alone in a pack, which the round removes.
    assert process.round([KEYS[7]], "e2") == {**PROBE, "GET data": 1, "PUT data": 1, **VERSION}


def test_many_new_objects_cost_no_request_each(process):
    """Otherwise each of 694 objects in 500 slots would cost a request."""
    keys = [f"raw/many/{n}.json" for n in range(694)]
    assert 450 < len({slot_of(key) for key in keys}) < 550
    found = process.round(keys, "e1")
    assert found.pop("GET state", 0) <= 6
    assert found == {**PROBE, "PUT data": 1, "PUT state": 1, "PUT changes": 1, **VERSION}


def test_commit_of_1000_slots_costs_no_request_each(process):
    keys = [f"raw/all/{n}.json" for n in range(9000)]
    assert len({slot_of(key) for key in keys}) == 1000
    found = process.round(keys, "e1")
    writes = {kind: number for kind, number in found.items() if kind.startswith("PUT")}
    assert sum(writes.values()) <= 10, writes


def test_neighbouring_pages_of_many_overwritten_objects_are_read_together(process):
    """Otherwise overwrites would read each page separately, or take more than 2 requests for each rewritten pack."""
    before = process.whole.newest().packs.keys()
    found = process.round(KEYS[1000:11_410:15], "e1")
    rewritten = len(before - process.whole.newest().packs.keys())
    assert 2 <= rewritten <= 4
    assert found.pop("GET state") <= 6
    packs = {"GET data": rewritten, "PUT data": rewritten + 1}
    assert found == {**PROBE, **packs, "PUT state": 1, "PUT changes": 1, **VERSION}
