"""(18) The cost of finding the states of a batch's objects: in tables of 1 and 10 million objects.

The state files are in memory. At first, they have the sizes of merged files. Then 40 rounds of 694 objects follow, so
that each level of the states has files. Half of these objects are new, and half are overwritten. Requests and their
bytes are counted. *Warm*: the process has the tails of all files (filters and footers) in its cache, but none of their
pages. *Cold*: the cache of the process is empty.

The alternative is a layout by slots. For each slot of the batch's keys, this layout must read one page, even if the
table has no object with such a key. Pages have at most 4,096 states, and pages of small slots have fewer states. The
values for 100 million objects are calculated.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.table.states.state_cache import StateCache
from s3notify_platform.table.states.state_columns import FIELDS, STATE_SCHEMA
from s3notify_platform.table.states.state_file import state_files
from s3notify_platform.table.states.state_levels import StateSet
from s3notify_platform.table.states.state_reader import StateReader
from tests.benchmarks.figures import Figure, seconds, short, times
from tests.support.states import Site, state

BATCH = 694
ROUNDS = 40
FIRST_LEVEL = 3
"""The level of the initial states. States of 10 million objects are so large that they are on this level."""


def run(folder: Path, *, small: bool) -> list[Figure]:
    folder.mkdir()
    figures: list[Figure] = []
    for total in (20_000,) if small else (1_000_000, 10_000_000):
        figures += _of(total)
    return figures


def key_of(number: int) -> str:
    return f"events/year=2026/month={number % 12:02d}/day={number % 28:02d}/part-{number:09d}.json"


def _of(total: int) -> list[Figure]:
    site, rng = Site(cache=StateCache(1 << 30)), Random(1)
    file_bytes = min(max(33 * total // 100, 4 << 20), 64 << 20)
    with seconds() as filling:
        made = state_files(
            _columns(total),
            level=FIRST_LEVEL,
            name=site.name,
            file_bytes=file_bytes,
        )
        for file, body in made:
            site.states = StateSet(files=(*site.states.files, file))
            site.ranges.bodies[file.name] = body
    files = site.states.files
    size, tails = sum(f.bytes - f.tail for f in files), sum(f.tail for f in files)
    about = f"{total:,} objects"
    figures = [
        Figure(
            what=f"states of {about}",
            ours=f"{size / total:.1f} bytes each in pages, {tails / total:.2f} in tails; {len(files)} files; "
            f"written in {short(filling())}",
            instead=f"100,000,000, by arithmetic: {size / total / 10:.1f} GB, and {tails / total / 10:.2f} GB in tails",
            ratio="",
        )
    ]
    written, started = 0, total
    with seconds() as took:
        for _ in range(ROUNDS):
            new = [key_of(started + n) for n in range(BATCH // 2)]
            started += len(new)
            old = [key_of(rng.randrange(total)) for _ in range(BATCH // 2)]
            upcoming = site.write([state(key, etag=rng.randbytes(16).hex(), size=2000) for key in new + old])
            written += sum(map(len, upcoming.bodies.values()))
    part = len(json.dumps(site.states.json(), separators=(",", ":")))
    touched = 2 * size / total * BATCH * 1000 / 1024
    figures.append(
        Figure(
            what=f"a round of {BATCH} over {about}, mean of {ROUNDS}: states written, merges included",
            ours=f"{written / ROUNDS / 1024:,.0f} KB, {short(took() / ROUNDS)}; {part / 1024:.1f} KB of the manifest",
            instead=f"read and write each page that is touched, of 1,000, by arithmetic: {touched:,.0f} KB",
            ratio="",
        )
    )
    known = [key_of(rng.randrange(total)) for _ in range(BATCH)]
    new = [key_of(started + n) for n in range(BATCH)]
    for what, wanted in (
        ("1 known object", known[:1]),
        ("1 new object", new[:1]),
        (f"{BATCH} known objects", known),
        (f"{BATCH} new objects", new),
    ):
        figures += _looked_up(site, what, wanted, about)
    return figures


def _looked_up(site: Site, what: str, wanted: list[str], about: str) -> list[Figure]:
    slots = len({slot_of(key) for key in wanted})
    found = []
    for warm in (True, False):
        reader = StateReader(ranges=site.ranges, cache=StateCache(1 << 30))
        if warm:
            for file in site.states.files:
                reader.tail(file)
        site.ranges.reads.clear()
        with seconds() as took:
            site.lookup(wanted, reader)
        gets, read = len(site.ranges.reads), sum(end - start for _, start, end in site.ranges.reads)
        found.append(
            Figure(
                what=f"{what} among {about}, {'warm' if warm else 'cold'}",
                ours=f"{gets} GET, {read / 2**20:.2f} MB, {short(took())}",
                instead=f"a page of each slot: {slots} GET",
                ratio=times(slots, gets) if gets else "none",
            )
        )
    return found


def _columns(total: int) -> Iterator[pa.RecordBatch]:
    keys = pa.array((key_of(n) for n in range(total)), pa.string(), size=total)
    slots = pa.array((slot_of(key_of(n)) for n in range(total)), pa.int32(), size=total)
    order = pc.sort_indices(
        pa.record_batch([slots, keys], names=["slot", "key"]),
        sort_keys=[("slot", "ascending"), ("key", "ascending")],
    )
    rng, random = np.random.default_rng(1), Random(2)
    step = 1 << 16
    for start in range(0, total, step):
        rows = order.slice(start, step)
        count = len(rows)
        etags = random.randbytes(16 * count).hex()
        since = pa.array(rng.integers(1, 2000, count))
        values = {
            "slot": slots.take(rows),
            "key": keys.take(rows),
            "etag": pa.array([etags[32 * n : 32 * n + 32] for n in range(count)]),
            "size": pa.array(rng.integers(500, 5000, count)),
            "rows": pa.array(rng.integers(5, 50, count)),
            "since": since,
            "until": since,
            "reach_end": pa.repeat(pa.scalar(True), count),
        }
        usual = {pa.string(): "", pa.int64(): 0, pa.bool_(): False}
        for name, kind in FIELDS.items():
            values.setdefault(name, pa.repeat(pa.scalar(usual[kind], kind), count))
        yield pa.record_batch([values[name] for name in STATE_SCHEMA.names], schema=STATE_SCHEMA)
