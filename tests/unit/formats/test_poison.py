"""The corpus of bad objects, in parsers and inference: a bad object affects no other object."""

import bz2
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from s3notify_platform.formats.base import LIMITS, Format, SplitEnd
from s3notify_platform.formats.inference import infer
from s3notify_platform.formats.object_bytes import BytesInMemory
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS, fixed_schema, format_of
from s3notify_platform.kernel.limits import MAX_CELLS, MAX_DECODED_BYTES, MAX_DECODED_PER_BYTE
from tests.support.avro import block, header, long
from tests.support.compressions import COMPRESS
from tests.support.poison import GOOD, HEAVY, SCHEMA, corpus
from tests.support.poison.files import FILES, harmless_first, nulls, one_long_value, parquet
from tests.support.poison.texts import TEXTS
from tests.support.split_reading import SCHEMAS, Remote, read, version, whole_split

CORPUS = corpus(heavy=False)

MADE = {**TEXTS, **FILES}

HEAVY_FILES = [
    "nested-keys.jsonl",
    *(
        name
        for name in FILES
        if name in HEAVY or name.startswith(("repeated", "null-", "empty-", "blocks", "large-"))
    ),
]


def form_of(name: str) -> Format:
    form = format_of(name, "auto")
    assert form is not None
    return form


def good_of(form: Format) -> bytes:
    """A good object of this format, with records 1 and 2."""
    return next(body for name, body in GOOD.items() if form_of(name) is form)


def parse(form: Format, objects: Sequence[tuple[str, bytes]], target: Target) -> tuple[list[Any], list[Any]]:
    rows: list[Any] = []
    rejects: list[Any] = []
    for parsed in form.parse(objects, target):
        assert parsed.table.schema == target.output
        parsed.table.validate(full=True)
        assert parsed.table.num_rows == len(parsed.index) == len(parsed.offset)
        of_good = parsed.index != 1
        rows += zip(parsed.index[of_good], parsed.table.filter(pa.array(of_good)).to_pylist(), strict=True)
        rejects += parsed.rejects
    return sorted(rows, key=lambda row: (row[0], row[1]["id"])), rejects


@pytest.mark.parametrize("rescue", [False, True])
@pytest.mark.parametrize("inferred", [False, True])
@pytest.mark.parametrize("name", CORPUS)
def test_good_neighbours_are_unchanged(name: str, inferred: bool, rescue: bool) -> None:
    """A good object must give the same rows alone and together with any other object."""
    form = form_of(name)
    good = good_of(form)
    target = Target(schema=SCHEMA, inferred=inferred, rescue=rescue)
    rows, rejects = parse(form, [("a", good), (name, CORPUS[name]), ("b", good)], target)
    found = [(index, row["id"], row["name"]) for index, row in rows]
    assert found == [(0, 1, "ann"), (0, 2, "bob"), (2, 1, "ann"), (2, 2, "bob")]
    assert {reject.index for reject in rejects} <= {1}
    assert all(reject.reason for reject in rejects)


@pytest.mark.parametrize("name", CORPUS)
def test_inference_next_to_a_bad_object_works(name: str) -> None:
    """Otherwise a single bad object in the sample would stop the inference of the schema, and the good
    objects of the source could not be loaded.
    """
    form = form_of(name)
    schemas = [
        schema
        for body in (good_of(form), CORPUS[name])
        for schema in form.schemas(BytesInMemory(body), name, "utf-8")
    ]
    found = infer(schemas)
    assert found is not None
    assert {"id", "name"} <= set(found.names)
    assert not {"_key", "_KEY", "_slot", "", "_rescued"} & set(found.names)


@pytest.mark.parametrize("name", CORPUS)
def test_a_bad_object_can_be_read_in_pieces_to_its_end(name: str) -> None:
    """Objects that are too big for memory are read piece by piece. The read in pieces must end, too."""
    body = CORPUS[name]
    target = Target(schema=SCHEMA, inferred=True)
    *_, end = form_of(name).read(Remote(body), whole_split(version(body, name)), target)
    assert isinstance(end, SplitEnd)
    assert end.reach_end


def test_rows_without_bytes_are_refused() -> None:
    """The footer declares so many rows that writing all of them would take hours."""
    rows, (reject,) = parse(FORMATS["parquet"], [("a", nulls(20_000_000))], Target(schema=SCHEMA))
    assert not rows
    assert reject.reason.startswith("Parquet: 20000000 rows in ")


@pytest.mark.parametrize("inferred", [False, True])
def test_narrow_rows_in_a_wide_schema_are_parsed_in_small_tables(inferred: bool) -> None:
    """A row has a null for each column that its record lacks. Without smaller tables, a small object in a source with
    thousands of columns could fill a task's memory with nulls.
    """
    wide = pa.schema([(f"c{n}", pa.int64()) for n in range(2000)])
    body = parquet(pa.table({"c7": list(range(20_000))}))
    lines = b"".join(b'{"c%d":%d}\n' % (7 + n % 3, n) for n in range(20_000))
    for name, rows, of in (("parquet", 20_000, body), ("jsonl", 20_000, lines)):
        found = [*FORMATS[name].parse([("a", of)], Target(schema=wide, inferred=inferred))]
        assert max(parsed.table.num_rows for parsed in found) * 2000 <= MAX_CELLS
        table = pa.concat_tables(parsed.table for parsed in found)
        assert table.num_rows == rows
        assert sum(table[f"c{n}"].null_count for n in (7, 8, 9)) == 2 * rows


@pytest.mark.parametrize(
    "body",
    [
        b"{}\n" * 30_000 + b"{" + b",".join(b'"k%d":1' % n for n in range(1900)) + b"}\n",
        b"{}\n" * 30_000 + b"{" + b",".join(b'":k%d":"x"' % n for n in range(1900)) + b"}\n",
        TEXTS["nested-keys.jsonl"](),
    ],
    ids=["flat", "colons", "nested"],
)
@pytest.mark.parametrize("inferred", [False, True])
def test_a_record_with_many_new_fields_among_many_empty_records_takes_little_memory(
    inferred: bool, body: bytes
) -> None:
    """Otherwise each empty record would get a value for each of the fields, so an object of a third of a megabyte would
    take gigabytes.
    """
    program = """
import sys
import pyarrow as pa
from tests.support.poison import SCHEMA
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS

body, target = sys.stdin.buffer.read(), Target(schema=SCHEMA, inferred=len(sys.argv) > 1)
parsed = [*FORMATS["jsonl"].parse([("k", body)], target)]
print(sum(each.table.num_rows for each in parsed))
print(sum(len(each.rejects) for each in parsed))
print(pa.default_memory_pool().max_memory())
"""
    command = [sys.executable, "-c", program, *(["inferred"] if inferred else [])]
    done = subprocess.run(command, check=True, capture_output=True, input=body, timeout=120)
    rows, rejects, most = map(int, done.stdout.split())
    empty = body.count(b"{}")
    assert (rows, rejects) == ((empty, 1) if inferred else (empty + 1, 0))
    assert most <= 32 * MAX_CELLS


@pytest.mark.parametrize("name", [name for name in TEXTS if name.endswith(".jsonl") and name not in HEAVY])
def test_bad_lines_that_are_read_as_documents_affect_no_other_object(name: str) -> None:
    """JSON documents have their own reader. If a bad text stopped or confused this reader, rows of good documents in
    the same call would be lost or changed.
    """
    for rescue in (False, True):
        target = Target(schema=SCHEMA, inferred=True, rescue=rescue)
        good = b'[{"id":1,"name":"ann"},\n{"id":2,"name":"bob"}]'
        rows, _ = parse(FORMATS["json"], [("a", good), (name, CORPUS[name]), ("b", good)], target)
        assert [(index, row["id"]) for index, row in rows] == [(0, 1), (0, 2), (2, 1), (2, 2)]


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory on Linux only")
def test_an_object_that_exceeds_the_memory_is_a_reject() -> None:
    """The process must survive."""
    program = """
import sys
from tests.support.poison import SCHEMA
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import FORMATS
from s3notify_platform.spark.memory_limit import limit_memory

body = sys.stdin.buffer.read()
limit_memory(100 << 20)
for _ in range(2):
    for parsed in FORMATS["parquet"].parse([("k", body)], Target(schema=SCHEMA)):
        print(parsed.table.num_rows, [reject.reason for reject in parsed.rejects])
"""
    command = [sys.executable, "-c", program]
    body = one_long_value(200, 1_000_000, store_schema=False)
    # Arrow's own allocators would reserve more than the limit before the limit is set.
    environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
    found = subprocess.run(command, check=True, capture_output=True, input=body, timeout=120, env=environment)
    printed = found.stdout.decode()
    assert printed.count("Parquet: row group 0: ") == 2, printed
    assert printed.count("alloc of size") == 2, printed


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_corpus_takes_at_most_a_gigabyte_of_memory() -> None:
    """Otherwise a small bad object could exhaust the memory of a Spark worker, and good objects of the same task would
    not be loaded.
    """
    program = [sys.executable, "-m", "tests.support.programs.read_poison"]
    done = subprocess.run(program, check=True, capture_output=True, text=True, timeout=880)
    assert 0 < int(done.stdout) <= 1 << 30


@pytest.mark.parametrize("how", [{}, {"store_schema": False}])
@pytest.mark.parametrize("size", [460_000, 10_000_000])
def test_the_decoded_rows_of_an_object_are_bounded(size: int, how: dict[str, Any]) -> None:
    """An object of a few hundred bytes may repeat a value many times. Without the bound, the rows of such an object
    could take gigabytes, and the task would run out of memory.
    """
    body = one_long_value(1 + 2 * MAX_DECODED_BYTES // size, size, **how)
    rows, rejects = parse(FORMATS["parquet"], [("a", body)], Target(schema=SCHEMA))
    assert not rows
    assert [reject.reason for reject in rejects] == [f"Parquet: more than {MAX_DECODED_BYTES} bytes, decoded"]
    few = one_long_value(MAX_DECODED_BYTES // size // 2, size, **how)
    found = [*FORMATS["parquet"].parse([("a", few)], Target(schema=SCHEMA))]
    assert sum(parsed.table.num_rows for parsed in found) == MAX_DECODED_BYTES // size // 2


def test_rows_before_the_bound_are_kept_and_the_reject_has_an_offset() -> None:
    """Without an offset, the reject would report the whole object as refused, although its first rows are committed."""
    size = 460_000
    body = harmless_first(1 + 2 * MAX_DECODED_BYTES // size, size)
    parsed = [*FORMATS["parquet"].parse([("a", body)], Target(schema=SCHEMA))]
    assert sum(each.table.num_rows for each in parsed) == 100
    (reject,) = (reject for each in parsed for reject in each.rejects)
    why = f"Parquet: more than {MAX_DECODED_BYTES} bytes, decoded: its rows from here on are left out"
    assert (reject.offset, reject.reason) == (100, why)


def test_avro_rows_before_the_bound_are_kept() -> None:
    """Otherwise a user would lose rows that are within the bound. Without the offset of the first row beyond the bound,
    a user could not see where the missing rows begin.
    """
    records = (long(1 << 20) + b"x" * (1 << 20)) * 15
    schema = {"type": "record", "name": "r", "fields": [{"name": "name", "type": "string"}]}
    begin, one = header(schema, b"bzip2"), block(bz2.compress(records), 15)
    given = MAX_DECODED_BYTES // len(records) & ~1  # two Avro blocks become one Arrow table
    parsed = [*FORMATS["avro"].parse([("a", begin + one * (given + 3))], Target(schema=SCHEMA))]
    assert sum(each.table.num_rows for each in parsed) == 15 * given
    (reject,) = (reject for each in parsed for reject in each.rejects)
    assert reject.offset == len(begin) + given * len(one)
    assert reject.reason == f"avro: its rows from here on are more than {MAX_DECODED_BYTES} bytes, decoded"


LINE = b'{"name":"' + b"x" * (1 << 20) + b'"}\n'
KEPT = MAX_DECODED_BYTES // len(LINE)


@pytest.mark.parametrize(("fmt", "key", "suffix"), [("jsonl", "k", "zst"), ("text", "k.bz2", "bz2")])
def test_the_decoded_bytes_of_a_compressed_text_are_bounded(fmt: str, key: str, suffix: str) -> None:
    """Otherwise an object of one megabyte could keep a task busy for hours, or become billions of rows."""
    body = COMPRESS[f"k.{suffix}"](LINE * 10) * 30
    assert len(body) < MAX_DECODED_BYTES // MAX_DECODED_PER_BYTE
    target = Target(schema=fixed_schema(fmt) or SCHEMA)
    parsed = [*FORMATS[fmt].parse([(key, body)], target)]
    assert sum(each.table.num_rows for each in parsed) == KEPT
    (reject,) = (reject for each in parsed for reject in each.rejects)
    assert reject.offset == KEPT * len(LINE)
    assert f": more than {MAX_DECODED_BYTES} bytes, decoded; the rest of the object" in reject.reason
    assert reject.raw
    assert LINE.startswith(reject.raw)


def test_a_compressed_text_that_is_read_in_parts_has_the_bound_of_the_whole() -> None:
    """Otherwise each part could decode as many bytes as a whole object may."""
    body = COMPRESS["k.zst"](LINE * 10) * 30
    first = replace(whole_split(version(body, "k.zst")), by_record=True, limit_bytes=150 << 20)
    found, end = read(Remote(body), first, "text", SCHEMAS["text"], limits=LIMITS)
    assert (len(found), end.reach_end) == (end.offset, False)
    second = replace(first, start=end.offset)
    found, end = read(Remote(body), second, "text", SCHEMAS["text"], limits=LIMITS)
    assert (second.start + len(found), end.reach_end) == (KEPT + 1, True)
    assert [place for place, *_ in found] == [n * len(LINE) for n in range(second.start, KEPT + 1)]


def test_a_text_that_compresses_well_is_read_to_its_end() -> None:
    """Otherwise large logs, of which many lines repeat, would lose their last lines."""
    line = random.Random(1).randbytes(1000).hex().encode() + LINE
    body = COMPRESS["k.zst"](line) * 300
    assert MAX_DECODED_BYTES < len(line) * 300 < len(body) * MAX_DECODED_PER_BYTE
    found = [*FORMATS["text"].parse([("k.zst", body)], Target(schema=SCHEMAS["text"]))]
    assert [reject for each in found for reject in each.rejects] == []
    assert sum(each.table.num_rows for each in found) == 300


@pytest.mark.parametrize("name", HEAVY_FILES)
def test_small_files_take_at_most_a_gigabyte_of_memory(name: str) -> None:
    """Otherwise a file of less than a megabyte could end a Spark worker with little memory, and good files of the same
    task would not be loaded.
    """
    program = """
import os
import sys
from tests.support.poison import SCHEMA
from s3notify_platform.formats.records import Target
from s3notify_platform.formats.registry import format_of
from s3notify_platform.spark.memory_limit import limit_memory

body = sys.stdin.buffer.read()
limit_memory(1 << 30)
for rescue in (False, True):
    target = Target(schema=SCHEMA, rescue=rescue)
    found = [*format_of(sys.argv[1], "auto").parse([("k", body)], target)]
    assert sum(parsed.table.num_rows + len(parsed.rejects) for parsed in found)
os._exit(0)  # Arrow's threads may abort a process that ends in the usual way: apache/arrow#39862
"""
    body = MADE[name]()
    assert len(body) < 1_000_000
    subprocess.run([sys.executable, "-c", program, name], check=True, input=body, timeout=120)
