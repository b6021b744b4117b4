"""Deletion vectors: encoded, decoded, and refused if they are damaged."""

from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap, BitMap64

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.table.delta.actions import Vector
from s3notify_platform.table.delta.vectors import (
    INLINE_BYTES,
    _from_z85,
    _z85,
    decode,
    encode,
    file_of,
    path_of,
    span,
)

FILE = UUID(int=0x00112233445566778899AABBCCDDEEFF)
EVERY = 2**32


def read(vector: Vector, body: bytes | None, rows: int = EVERY) -> BitMap:
    start, end = span(vector)
    stored = (body or b"")[start:end] if file_of(vector) else b""
    return decode(vector, rows=rows, stored=stored, where="pack")


SPREAD = st.builds(
    lambda first, step, count: range(first, first + step * count, step), *[st.integers(1, 9000)] * 3
)
ROWS = st.sets(st.integers(0, EVERY - 1), max_size=50) | SPREAD | st.builds(range, st.integers(0, 200_000))


@given(st.lists(ROWS, max_size=4))
def test_rows_are_decoded_as_they_were_encoded(packs: list[set[int] | range]) -> None:
    """Otherwise wrong rows would be hidden. Vectors in the log and in the round's file are tested."""
    found = encode({str(n): rows for n, rows in enumerate(packs)}, file=FILE)
    for n, rows in enumerate(packs):
        vector = found.vectors[str(n)]
        assert set(read(vector, found.body)) == set(rows)
        assert vector.rows == len(rows)
        assert (file_of(vector) is None) == (vector.size <= INLINE_BYTES)
        assert Vector.of(vector.json()) == vector
    assert (found.body is None) == all(each.storage == "i" for each in found.vectors.values())


def test_vector_has_the_protocol_format() -> None:
    """Otherwise other engines would not read the vectors. The example is from Delta Kernel's tests."""
    (vector,) = encode({"p": [3, 4, 7, 11, 18, 29]}, file=FILE).vectors.values()
    assert vector == Vector(
        storage="i", body="^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", size=44, rows=6
    )
    data = _from_z85(vector.body)
    assert set(BitMap64.deserialize(data[4:])) == {3, 4, 7, 11, 18, 29}


def test_name_of_a_file_is_found_from_the_log() -> None:
    """Otherwise other engines would not find the file of a vector. The name of the file can begin with a folder."""
    found = encode({"p": range(0, 60_000, 2)}, file=FILE)
    vector = found.vectors["p"]
    assert vector.storage == "u"
    assert vector.offset == 1
    assert file_of(vector) == path_of(FILE) == f"_s3notify/vector/deletion_vector_{FILE}.bin"
    assert file_of(replace(vector, body=vector.body[-20:])) == f"deletion_vector_{FILE}.bin"
    # This example is in the text of the protocol.
    known = replace(vector, body="ab^-aqEH.-t@S}K{vb[*k^")
    assert file_of(known) == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    for broken in (replace(vector, storage="p"), replace(vector, body="ab"), replace(vector, body="§" * 20)):
        with pytest.raises(CorruptError, match="deletion vector"):
            file_of(broken)


@given(st.binary(max_size=40))
def test_z85_is_reversible(data: bytes) -> None:
    """Otherwise vectors in the log would be decoded to other bytes."""
    assert _from_z85(_z85(data)) == data + b"\0" * (-len(data) % 4)


@given(st.integers(0, 200), st.integers(0, 255), st.booleans())
def test_damaged_vector_is_refused(at: int, byte: int, inline: bool) -> None:
    """Otherwise a changed byte would hide other rows without an error."""
    rows = range(0, 300 if inline else 30_000, 3)
    found = encode({"p": rows}, file=FILE)
    vector, body = found.vectors["p"], bytearray(found.body or b"")
    if inline:
        data = bytearray(_from_z85(vector.body))
        data[at % len(data)] = byte
        vector = replace(vector, body=_z85(data))
    else:
        start, end = span(vector)
        body[start + at * 97 % (end - start)] = byte
    kept = None
    with suppress(CorruptError):
        kept = read(vector, bytes(body), rows=30_000)
    assert kept is None or len(kept) == vector.rows
    assert kept is None or inline or set(kept) == set(rows)


def test_vector_of_another_file_is_refused() -> None:
    """Otherwise a vector that belongs to another file would hide wrong rows."""
    found = encode({"p": [1, 5], "q": range(0, 30_000, 3)}, file=FILE)
    small, large = found.vectors["p"], found.vectors["q"]
    assert set(read(small, None, rows=6)) == {1, 5}
    for vector, body, rows in (
        (small, None, 5),
        (replace(small, rows=3), None, 6),
        (replace(small, body=_z85(b"\0" * 40)), None, 6),
        (replace(small, body=small.body[:-1]), None, 6),
        (large, found.body[:-1] if found.body else b"", 30_000),
        (replace(large, offset=0), found.body, 30_000),
    ):
        with pytest.raises(CorruptError, match=r"^pack: "):
            read(vector, body, rows=rows)
