"""States of objects: the answers of a `StateSet`, the requests that these answers need, and the part of the set that is
in the manifest.
"""

import io
import json

import duckdb
import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.layout import TableLayout
from s3notify_platform.table.states import state_columns, state_file
from s3notify_platform.table.states.state_cache import StateCache, StoredRanges
from s3notify_platform.table.states.state_file import StateFile, state_files
from s3notify_platform.table.states.state_filter import filter_of, hash_of, may_hold
from s3notify_platform.table.states.state_levels import StateSet
from s3notify_platform.table.states.state_reader import StateReader
from tests.support.states import Site, filled, gone, keys, state

MANY = 30_000


@pytest.fixture(scope="module")
def large():
    """A large file, as a first batch makes it: 30,000 objects in 8 pages."""
    site = Site()
    site.write([state(key, etag=f"{n:032x}", rows=n) for n, key in enumerate(keys(MANY))])
    assert len(site.states.files) == 1
    return site


def test_few_changes_stay_in_the_manifest_and_many_go_to_a_file():
    site = Site()
    site.write([state(key) for key in keys(200)])
    assert not site.states.files
    site.write([state(key) for key in keys(100, 200)])
    assert [file.states for file in site.states.files] == [300]
    assert not site.states.inline
    assert len(site.lookup(keys(400))) == 300


def test_few_long_states_go_to_a_file():
    site = Site()
    site.write([state(f"{n}", trace="x" * 4096, reason="?") for n in range(10)])
    assert [file.failing for file in site.states.files] == [10]


def test_part_in_the_manifest_stays_small():
    site = Site()
    changed = [state(key, etag="0" * 32, size=12345, rows=100, since=7, until=7) for key in keys(256)]
    site.write(changed)
    assert len(json.dumps(site.states.json(), separators=(",", ":"))) < 25_000


def test_set_is_read_from_json_as_it_was_written(large):
    site = Site()
    odd = ["", "a\nb", "'\"\\", "é" * 512, "\U0010ffff", "\ud7ff", "x" * 1024, "\x7f"]
    states = [state(key, etag="", size=0) for key in odd[:3]] + [gone(key) for key in odd[3:5]]
    states += [
        state(key, reason="r", trace="t", again=True, offset=2**62, reach_end=False) for key in odd[5:]
    ]
    full = StateSet(inline=site.changes(states), files=large.states.files)
    body = json.loads(json.dumps(full.json()))
    assert StateSet.of(body, where="m") == full


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        {"inline": [], "files": 3},
        {"inline": [[0]], "files": []},
        {"inline": [[-1, "k"]], "files": []},
        {"inline": [[0, "k", "e", "1"]], "files": []},
        {"inline": [[0, "k", "e", True]], "files": []},
        {"inline": [[0, "k", "e", 1, 1, 1, 1, "", 2]], "files": []},
        {"inline": [[0, "k", "e", 2**63]], "files": []},
        {"inline": [], "files": [["a/../b", 0, 1, 9, 3, 1, 0, "", 1, ""]]},
        {"inline": [], "files": [["a", 0, 1, 9, 10, 1, 0, "", 1, ""]]},
        {"inline": [], "files": [["a", 0, 1, 9, 3, 1, 1, "", 0, ""]]},
        {"inline": [], "files": [["a", 0, 1, 9, 3, 1, 0, "", 1, ""]] * 2},
        {"inline": [], "files": [["a", 1, 1, 9, 3, 1, 0, "", 2, ""], ["b", 1, 1, 9, 3, 1, 1, "", 3, ""]]},
    ],
)
def test_damaged_set_is_refused_with_the_name_of_its_manifest(found):
    with pytest.raises(CorruptError, match="manifest 7"):
        StateSet.of(found, where="manifest 7")


def test_keys_of_any_characters_are_found():
    site = Site(slots=3)
    odd = [
        "a\nb",
        "'\"\\",
        "é" * 512,
        "\U0010ffff",
        "\U0010ffff" * 256,
        "\ud7ff",
        "\ue000",
        "x" * 1024,
        "\x01",
    ]
    site.write([state(key, rows=n) for n, key in enumerate(odd)] + [state(key) for key in keys(300)])
    assert site.states.files
    found = site.lookup([*odd, *(key + "x" for key in odd)], site.cold())
    assert {key: found[key].rows for key in found} == {key: n for n, key in enumerate(odd)}


def test_known_key_costs_one_page(large):
    wanted = keys(1, 4711)
    large.lookup(keys(1, 3))  # this lookup loads the tail of the file
    reader = large.reader
    reader.cache.__init__()
    reader.tail(large.states.files[0])
    assert sum(large.ranges.cost(lambda: large.lookup(wanted)).values()) == 1
    assert sum(large.ranges.cost(lambda: large.lookup(wanted)).values()) == 0
    assert large.lookup(wanted)[wanted[0]].rows == 4711


def test_new_keys_cost_few_requests(large):
    reader = large.cold()
    reader.tail(large.states.files[0])
    new = keys(694, MANY)
    found = []
    cost = large.ranges.cost(lambda: found.append(large.lookup(new, reader)))
    assert found == [{}]
    assert sum(cost.values()) <= 8


def test_cold_process_reads_the_tail_once_then_the_page(large):
    reader = large.cold()
    large.ranges.cost(lambda: large.lookup(keys(1, 99), reader))
    (file,) = large.states.files
    assert len(large.ranges.reads) == 2
    assert large.ranges.reads[0] == (file.name, file.bytes - file.tail, file.bytes)


def test_near_pages_are_read_together(large):
    reader = large.cold()
    cost = large.ranges.cost(lambda: large.lookup(keys(MANY), reader))
    assert sum(cost.values()) == 2


def test_small_file_is_read_whole():
    site = Site()
    site.write([state(key) for key in keys(300)])
    reader = site.cold()
    assert sum(site.ranges.cost(lambda: site.lookup(keys(300), reader)).values()) == 1
    assert sum(site.ranges.cost(lambda: site.lookup(keys(600), reader)).values()) == 0


def test_only_files_whose_range_has_the_key_are_read():
    site = Site(slots=2)
    site.write([state(key) for key in keys(1000) if site.slot(key) == 0])
    other = next(key for key in keys(1000) if site.slot(key) == 1)
    assert not site.ranges.cost(lambda: site.lookup([other], site.cold()))


def test_failing_and_pending_objects_are_found_by_their_pages(large):
    site = Site()
    failing, waiting, again = keys(3, 5000)
    states = [state(key) for key in keys(MANY)]
    states[5000] = state(failing, reason="broken")
    states[5001] = state(waiting, reach_end=False, offset=5)
    states[5002] = state(again, reason="broken, too", again=True)
    site.write(states)
    reader = site.cold()
    reader.tail(site.states.files[0])
    slots = range(1000)
    found = []
    cost = site.ranges.cost(lambda: found.append(reader.failing(site.states, slots)))
    assert sum(cost.values()) <= 2
    assert {k for some in found[0].values() for k in some} == {failing, again}
    assert {k for some in reader.pending(site.states, slots).values() for k in some} == {waiting, again}
    assert not reader.failing(site.states, [site.slot(waiting)])
    # Newer states override older states, and the page is not read again.
    site.write([state(failing), gone(again), state(keys(1)[0], reach_end=False)])
    assert reader.failing(site.states, slots) == {}
    pending = reader.pending(site.states, slots)
    assert {k for some in pending.values() for k in some} == {waiting, keys(1)[0]}
    assert not site.ranges.cost(lambda: large.reader.failing(large.states, slots))


def test_whole_slots_are_read_in_order_by_few_requests(large):
    reader = large.cold()
    found = {}
    cost = large.ranges.cost(lambda: found.update(reader.of_slots(large.states, range(1000))))
    assert sum(cost.values()) == 2
    assert list(found) == list(range(1000))
    assert sum(map(len, found.values())) == MANY
    assert found[large.slot(keys(1)[0])][keys(1)[0]].rows == 0
    one = large.slot(keys(1)[0])
    assert dict(reader.of_slots(large.states, [one])) == {one: found[one]}


def test_cache_stays_within_its_bytes(large):
    cache = StateCache(limit=2 << 20)
    reader = large.cold()
    reader = type(reader)(ranges=large.ranges, cache=cache)
    assert len(large.lookup(keys(MANY), reader)) == MANY
    assert 0 < cache.bytes <= cache.limit


def test_other_readers_of_parquet_read_a_state_file(large, tmp_path):
    (file,) = large.states.files
    body = large.ranges.bodies[file.name]
    path = tmp_path / "states.parquet"
    path.write_bytes(body)
    names = ["slot", *state_columns.FIELDS]
    assert pq.read_table(io.BytesIO(body)).column_names == names
    assert pl.read_parquet(path).shape == (MANY, len(names))
    assert duckdb.sql(f"select count(*), sum(rows) from '{path}'").fetchall() == [(MANY, sum(range(MANY)))]


@pytest.mark.parametrize("where", ["filter", "footer", "page", "short", "missing"])
def test_damaged_file_is_refused_with_its_name_and_the_remedy(large, where):
    site = Site()
    site.states = large.states
    (file,) = site.states.files
    body = bytearray(large.ranges.bodies[file.name])
    at = {"filter": len(body) - file.tail + 10, "footer": len(body) - 100, "page": 50_000}.get(where)
    if at is not None:
        body[at] ^= 1
    site.ranges.bodies = {file.name: bytes(body)}
    if where == "short":
        site.ranges.read = lambda *_: b""
    if where == "missing":
        site.ranges.bodies.clear()
    with pytest.raises(CorruptError, match=rf"{file.name}.*restore"):
        dict(site.reader.of_slots(site.states, range(1000)))
    with pytest.raises(CorruptError, match=rf"{file.name}.*restore"):
        site.lookup(keys(MANY), site.cold())


def test_states_are_read_from_a_store_by_ranges(large):
    layout, store = TableLayout(prefix="lake/t/"), CountingStore(MemoryObjectStore())
    (file,) = large.states.files
    store.put(layout.state(file.name), large.ranges.bodies[file.name])
    reader = StateReader(ranges=StoredRanges(store=store, key=layout.state), cache=StateCache())
    assert large.lookup(keys(1), reader)[keys(1)[0]].etag == "0" * 32
    assert store.counts == {"PUT": 1, "GET": 2}
    for damage in (
        lambda: store.put(layout.state(file.name), b"short"),
        lambda: store.delete(layout.state(file.name)),
    ):
        damage()
        with pytest.raises(CorruptError, match=rf"{file.name}.*restore"):
            large.lookup(keys(MANY), reader)


def test_filters_have_no_false_negative_and_few_false_positives():
    inside, outside = keys(4096), keys(20_000, 4096)
    body = filter_of(inside)
    assert len(body) == 4096 * 12 // 8
    assert all(may_hold(body, hash_of(key)) for key in inside)
    assert np.mean([may_hold(body, hash_of(key)) for key in outside]) < 0.006


def test_false_positive_of_a_filter_costs_a_request_and_gives_no_state(monkeypatch):
    site = filled(9)
    site.write([gone(key) for key in keys(300, 200)])
    expected = site.lookup(keys(2000))
    assert expected
    monkeypatch.setattr(state_file, "may_hold", lambda *_: True)
    assert site.lookup(keys(2000)) == site.lookup(keys(2000), site.cold()) == expected


def test_files_are_cut_between_slots_and_have_bounds_without_keys():
    site = Site(slots=20)
    columns = state_columns.columns_of(site.changes(state(key) for key in keys(MANY)))
    files = [file for file, _ in state_files([columns], level=1, name=site.name, file_bytes=20_000)]
    assert len(files) > 3
    assert all(file.first[1] == file.end[1] == "" for file in files)
    assert sum(file.states for file in files) == MANY


def test_slot_larger_than_a_file_is_divided():
    site = Site(slots=1)
    columns = state_columns.columns_of(site.changes(state(key) for key in keys(MANY)))
    made = [*state_files([columns], level=1, name=site.name, file_bytes=1)]
    files = [file for file, _ in made]
    assert len(files) > 3
    site.ranges.bodies = {file.name: body for file, body in made}
    site.states = StateSet(files=tuple(files))
    assert not site.states.misplaced()
    assert StateSet.of(json.loads(json.dumps(site.states.json())), where="m") == site.states
    assert len(site.lookup(keys(MANY))) == MANY


def test_long_reasons_make_smaller_pages():
    site = Site()
    site.write([state(key, reason="r" * 1000, trace="t" * 4000) for key in keys(4000)])
    tail = site.reader.tail(site.states.files[0])
    assert len(tail.pages) >= 4
    assert len(site.lookup(keys(4000))) == 4000


def test_manifest_row_of_a_state_file_is_short():
    file = StateFile(
        name="0" * 32,
        level=2,
        states=10**6,
        bytes=3 * 10**7,
        tail=10**6,
        check=2**32 - 1,
        first=(17, ""),
        end=(18, ""),
    )
    assert len(json.dumps(file.row(), separators=(",", ":"))) < 100
    assert StateFile.of(file.row()) == file
