"""However an object is cut into splits and chunks, its records come once, as they come of the whole."""

import csv
import io

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.protocols.source_enumerator import Split
from s3notify_platform.spark.formats import FIXED_SCHEMAS
from s3notify_platform.spark.split_reader import Limits
from tests.support.split_reading import Found, Remote, cut, read, whole

AB = pa.schema([("a", pa.int64()), ("b", pa.string())])
SCHEMAS = {"jsonl": AB, "csv": AB, "text": FIXED_SCHEMAS["text"]}
BOM = b"\xef\xbb\xbf"

json_line = st.one_of(
    st.builds(lambda a, b: f'{{"a":{a},"b":"{b}"}}', st.integers(0, 99), st.text("xé🙂 ", max_size=5)).map(
        str.encode
    ),
    st.binary(max_size=8).map(lambda raw: raw.replace(b"\n", b"")),
    st.sampled_from([b"", b" ", b"\r", BOM, b"{", b"bad"]),
)
csv_value = st.text('ab1,"\n\r é🙂', max_size=6)


def csv_well_formed(rows: list[tuple[int, str]], end: str) -> bytes:
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator=end)
    writer.writerow(["a", "b"])
    writer.writerows(rows)
    return sink.getvalue().encode()


lines = st.tuples(
    st.sampled_from([b"", BOM]),
    st.lists(st.tuples(json_line, st.sampled_from([b"\n", b"\n", b"\r\n", b"\n\n"])), max_size=12),
    st.booleans(),
).map(lambda made: made[0] + b"".join(a + b for a, b in made[1])[: None if made[2] else -1])
csv_good = st.builds(
    lambda mark, rows, end: mark + csv_well_formed(rows, end),
    st.sampled_from([b"", BOM]),
    st.lists(st.tuples(st.integers(-9, 9), csv_value), max_size=8),
    st.sampled_from(["\n", "\r\n"]),
)
csv_bad = st.builds(
    lambda mark, rest: mark + b"a,b\n" + rest,
    st.sampled_from([b"", BOM, b"\n", b"\r\n\n", b'"']),
    st.lists(st.sampled_from([b'"', b'""', b",", b"\n", b"\r", b"\r\n", b"a", b"1", b"\xff", b"1,x\n"])).map(
        b"".join
    ),
)
bodies = st.one_of(
    st.tuples(st.just("jsonl"), lines),
    st.tuples(st.just("text"), lines),
    st.tuples(st.just("csv"), csv_good | csv_bad),
)
places = st.lists(st.integers(0, 10_000), max_size=6)
tiny = st.builds(Limits, chunk_bytes=st.integers(1, 40), block_bytes=st.integers(1, 40))


@given(bodies, places, tiny)
def test_splits_give_each_record_once(made: tuple[str, bytes], at: list[int], limits: Limits) -> None:
    fmt, body = made
    together: Found = []
    splits = cut(body, at, fmt)
    for split in splits:
        found, end = read(Remote(body), split, fmt, SCHEMAS[fmt], limits=limits)
        assert end.status == "ok"
        assert end.offset >= split.end
        assert end.reach_end == (end.offset == len(body))
        assert end.reach_end or split is not splits[-1]
        together += found
    assert together == whole(body, fmt, SCHEMAS[fmt])


@given(bodies, places, tiny)
def test_a_later_split_goes_on_where_one_ended(
    made: tuple[str, bytes], at: list[int], limits: Limits
) -> None:
    """Without knowing what is quoted: a record begins there."""
    fmt, body = made
    first = cut(body, at, fmt)[0]
    found, end = read(Remote(body), first, fmt, SCHEMAS[fmt], limits=limits)
    rest = Split(version=first.version, start=end.offset, end=len(body))
    if not end.reach_end:
        more, end = read(Remote(body), rest, fmt, SCHEMAS[fmt], limits=limits)
        found += more
    assert end.reach_end
    assert found == whole(body, fmt, SCHEMAS[fmt])
