"""Each record of an object is read once, for any splits and any chunks."""

import csv
import gzip
import io
from collections.abc import Generator
from dataclasses import replace
from threading import Event

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from s3notify_platform.formats.base import Limits, SplitEnd
from s3notify_platform.formats.object_bytes import BytesInMemory, chunks
from s3notify_platform.protocols.source_enumerator import Split
from tests.support.compressions import COMPRESS
from tests.support.split_reading import AB, SCHEMAS, Found, Remote, cut, places, read, version, whole

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
def test_a_later_split_goes_on_where_the_earlier_split_ended(
    made: tuple[str, bytes], at: list[int], limits: Limits
) -> None:
    """A record must begin where the earlier split ended, even if values are quoted."""
    fmt, body = made
    middle = min(len(body), 1 + at[0] % (len(body) + 1)) if at else len(body)
    first = Split(version=version(body), start=0, end=middle)
    found, end = read(Remote(body), first, fmt, SCHEMAS[fmt], limits=limits)
    rest = Split(version=first.version, start=end.offset, end=len(body))
    if not end.reach_end:
        more, end = read(Remote(body), rest, fmt, SCHEMAS[fmt], limits=limits)
        found += more
    assert end.reach_end
    assert found == whole(body, fmt, SCHEMAS[fmt])


@pytest.mark.parametrize(
    "body", [b'a,b\n1,x"\n2,"y\nz"\n3,"u""\n"\n', b'a,b\n1,"x\n2,y\n3,"z\nz"\n4,"open\n5,u\n']
)
def test_chunks_may_end_in_values_with_stray_quotes(body: bytes) -> None:
    """The meaning of a stray quote depends on the end of its value. If the reader decided before this end,
    the same object would give other records with another chunk size.
    """
    (split,) = cut(body, [], "csv")
    for size in range(1, len(body)):
        limits = Limits(chunk_bytes=size, block_bytes=size)
        assert read(Remote(body), split, "csv", AB, limits=limits)[0] == whole(body, "csv", AB)


def test_a_quoted_value_may_span_splits() -> None:
    """A split that ends inside a quoted value reads the record to its end. Otherwise the record would be cut at the
    border of two splits, and its parts would be rejects or wrong rows.
    """
    body = b'a,b\n1,"' + b"line\n" * 20 + b'"\n2,y\n'
    second = len(body) - 4
    of = version(body)
    found, end = read(Remote(body), Split(version=of, start=0, end=30), "csv", AB)
    assert (found, end.offset) == ([(4, {"a": 1, "b": "line\n" * 20})], second)
    found, end = read(Remote(body), Split(version=of, start=end.offset, end=len(body)), "csv", AB)
    assert (found, end.reach_end) == ([(second, {"a": 2, "b": "y"})], True)


# Reading record by record

compressions = st.sampled_from(sorted(COMPRESS))


@given(
    st.one_of(
        st.tuples(st.sampled_from(["jsonl", "text"]), lines), st.tuples(st.just("csv"), csv_good | csv_bad)
    ),
    st.one_of(compressions, st.sampled_from(["utf-16", "utf-32"])),
    st.integers(0, 60),
    st.booleans(),
    tiny,
)
# In UTF-16, this text begins with the same bytes as a text in UTF-32.
@example(("jsonl", b"\0"), "utf-16", 0, False, Limits())
def test_reading_record_by_record_resumes_exactly(
    made: tuple[str, bytes], how: str, limit_bytes: int, known: bool, limits: Limits
) -> None:
    """A large compressed object is read in several steps. If a step continued at a wrong record, the table would lack
    records, or would have records twice.
    """
    fmt, text = made
    key, encoding = (how, "utf-8") if how in COMPRESS else ("k", how)
    if how in COMPRESS:
        body = COMPRESS[how](text)
        if not text and how == "k.snappy":
            return
    else:
        text = text.decode("utf-8", "replace").removeprefix("\ufeff").encode()
        body = text.decode().encode(how)
    found: Found = []
    start, reached = 0, False
    while not reached:
        split = Split(
            version=version(body, key),
            start=start,
            end=len(body),
            by_record=known or start > 0 or how == "k.snappy",
            limit_bytes=limit_bytes,
        )
        more, end = read(Remote(body), split, fmt, SCHEMAS[fmt], encoding=encoding, limits=limits)
        assert end.status == "by_record"
        assert end.reach_end or end.offset > start
        assert end.reach_end or limit_bytes
        start, reached = end.offset, end.reach_end
        found += more
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        return
    assert found == whole(text, fmt, SCHEMAS[fmt])


def test_a_step_ends_with_the_record_that_reaches_the_limit() -> None:
    body = gzip.compress(b"".join(b"%09d\n" % n for n in range(100)))
    for limit, count in ((1, 1), (10, 1), (11, 2), (100, 10), (101, 11)):
        split = Split(version=version(body, "k"), start=7, end=0, by_record=True, limit_bytes=limit)
        found, end = read(Remote(body), split, "text", SCHEMAS["text"], limits=Limits())
        assert [offset for offset, _ in found] == [10 * n for n in range(7, 7 + count)]
        assert (end.offset, end.reach_end) == (7 + count, False)


@pytest.mark.parametrize("fmt", ["jsonl", "csv", "text"])
def test_only_the_first_split_reads_a_compressed_object(fmt: str) -> None:
    """In this test, only the object's content shows that the object is compressed. So all splits except the first must
    notice the compression, and return no rows.
    """
    text = b'a,b\n{"a":1}\n' * 20
    body = gzip.compress(text)
    splits = [Split(version=version(body), start=at, end=at + 10) for at in range(0, len(body), 10)]
    found = [read(Remote(body), split, fmt, SCHEMAS[fmt]) for split in splits]
    assert found[0][0] == whole(text, fmt, SCHEMAS[fmt])
    assert found[0][1].status == "by_record"
    assert found[0][1].reach_end
    assert all(rows == [] and end == SplitEnd(status="by_record") for rows, end in found[1:])


@given(st.sampled_from(["k.gz", "k.bz2", "k.zst", "k.sz"]), st.data(), tiny)
def test_damage_is_one_reject_behind_the_intact_records(
    key: str, data: st.DataObject, limits: Limits
) -> None:
    lines = [b"%d line" % n for n in range(40)]
    text = b"\n".join(lines)
    body = COMPRESS[key](text[:150]) + COMPRESS[key](text[150:])
    at = data.draw(st.integers(16, len(body) - 1))
    split = Split(version=version(body[:at], key), start=0, end=at, by_record=True)
    found, end = read(Remote(body[:at]), split, "text", SCHEMAS["text"], limits=limits)
    behind = at - len(COMPRESS[key](text[:150]))
    # The cut is behind a whole member, or behind the next member's identifier.
    if behind == 0 or (key == "k.sz" and behind == 10):
        return
    *rows, (offset, reason, raw) = found
    assert rows == whole(text, "text", SCHEMAS["text"])[: len(rows)]
    assert offset == sum(len(line) + 1 for line in lines[: len(rows)])
    assert text[offset:].startswith(raw)
    assert "truncated" in reason
    assert end == SplitEnd(status="by_record", offset=len(rows) + 1, reach_end=True)
    rest = replace(split, start=len(rows))
    assert read(Remote(body[:at]), rest, "text", SCHEMAS["text"], limits=limits) == (found[-1:], end)


def test_an_undecodable_line_is_one_reject() -> None:
    body = b"a,b\n1,\xe9\n2,\x81\n3,x\n"
    split = Split(version=version(body), start=0, end=len(body), by_record=True)
    found, end = read(Remote(body), split, "csv", AB, encoding="cp1252")
    assert found[0] == (4, {"a": 1, "b": "é"})
    assert (found[1][0], len(found[1])) == (9, 3)
    assert found[2] == (15, {"a": 3, "b": "x"})
    assert end.offset == 3


# Long records


@given(bodies, places, st.integers(1, 30), tiny, tiny)
@example(
    ("csv", b'a,b\n0,"\n1234"\n'),
    [],
    3,
    Limits(chunk_bytes=1, block_bytes=1),
    Limits(chunk_bytes=12, block_bytes=12),
)
def test_records_that_are_too_long_are_rejects(
    made: tuple[str, bytes], at: list[int], longest: int, one: Limits, other: Limits
) -> None:
    """Without a limit, a record that has no end would fill a task's memory. If splits or chunks decided which records
    are too long, two reads of the same object could give different rows.
    """
    fmt, body = made
    all_of_it = Split(version=version(body), start=0, end=len(body))
    expected, _ = read(Remote(body), all_of_it, fmt, SCHEMAS[fmt], limits=replace(one, record_bytes=longest))
    splits = cut(body, at, fmt) if fmt != "csv" else [all_of_it]
    together: Found = []
    for split in splits:
        together += read(Remote(body), split, fmt, SCHEMAS[fmt], limits=replace(other, record_bytes=longest))[
            0
        ]
    assert together == expected
    if fmt != "csv":
        for found, normal in zip(expected, whole(body, fmt, SCHEMAS[fmt]), strict=False):
            if len(found) == 3 and "longer than" in found[1]:
                break
            assert found == normal


def test_a_long_line_is_one_reject_with_its_first_bytes() -> None:
    body = b'{"a":1}\n' + b"x" * 100_000 + b'\n{"a":2}\n'
    limits = Limits(chunk_bytes=1000, record_bytes=5000)
    found, end = read(Remote(body), cut(body, [], "jsonl")[0], "jsonl", AB, limits=limits)
    assert [row[0] for row in found] == [0, 8, 100_009]
    assert "longer than 5000 bytes" in found[1][1]
    assert found[1][2] == b"x" * 5000
    assert end.offset == len(body)


# CSV headers


@pytest.mark.parametrize("body", [b"a,a\n1,2\n3,4\n", b"x,y\n1,2\n3,4\n", b'a,"b\n1,2\n'])
def test_a_bad_header_is_one_reject_of_all_splits(body: bytes) -> None:
    splits = [
        Split(version=version(body), start=at, end=min(at + 4, len(body))) for at in range(0, len(body), 4)
    ]
    found = [read(Remote(body), split, "csv", AB) for split in splits]
    assert [len(rows) for rows, _ in found] == [1] + [0] * (len(splits) - 1)
    assert found[0][0] == whole(body, "csv", AB)
    assert [end.offset for _, end in found] == [split.end for split in splits]
    assert found[-1][1].reach_end
    packed = gzip.compress(body)
    split = Split(version=version(packed), start=0, end=len(packed), by_record=True)
    assert read(Remote(packed), split, "csv", AB)[0] == found[0][0]


def test_closing_a_reader_does_not_wait_for_its_reads() -> None:
    """The garbage collector may close a reader in any thread, even in a thread for which the reads wait. If
    closing waited for the reads, this thread and the reads would wait for each other for ever.
    """
    go_on, done = Event(), list[int]()

    class Slow(BytesInMemory):
        def read(self, start: int, end: int) -> bytes:
            if start > 0:
                go_on.wait(20)
                done.append(start)
            return super().read(start, end)

    text = chunks(Slow(bytes(100)), 0, 100, chunk_bytes=10)
    assert next(text) == bytes(10)
    assert isinstance(text, Generator)
    text.close()
    assert done == []
    go_on.set()
