"""Compressed and encoded bytes become the complete text, or the text before the damage followed by the reason."""

import gzip
import sys
from collections.abc import Iterator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from s3notify_platform.formats.codecs import (
    UNPACKED_BYTES,
    by_record,
    check_encoding,
    compression_of,
    decoded,
    decoded_whole,
    is_text,
)
from s3notify_platform.kernel.errors import CorruptError, UsageError
from tests.support.compressions import COMPRESS, snappy_framed

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


named = pytest.mark.parametrize("key", COMPRESS)
texts = st.binary(max_size=300) | st.text("ab\n", max_size=300).map(str.encode)


def chunked(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


def text_and_fault(body: bytes, key: str, size: int = 9, encoding: str = "utf-8") -> tuple[bytes, str]:
    found = b""
    try:
        for piece in decoded(chunked(body, size), key, encoding, len(body)):
            found += piece
    except CorruptError as error:
        return found, str(error)
    return found, ""


@named
@given(
    members=st.lists(texts.filter(lambda t: b"\xfe" not in t and b"\xff" not in t), max_size=3),
    size=st.integers(1, 400),
)
def test_concatenated_members_are_read(key: str, members: list[bytes], size: int) -> None:
    body = b"".join(map(COMPRESS[key], members))
    text = b"".join(members)
    assume(not text.startswith((b"\0\0", b"\xff")))
    assert text_and_fault(body, key, size) == (text, "")
    assert decoded_whole(body, key, "utf-8", len(text)) == text
    assert not text or decoded_whole(body, key, "utf-8", len(text) - 1) is None or body == text


@named
@given(text=st.text("abc\n", min_size=200, max_size=400).map(str.encode), data=st.data())
def test_a_truncated_stream_has_an_error(key: str, text: bytes, data: st.DataObject) -> None:
    """A part of the text must never look like the complete text."""
    body = COMPRESS[key](text)
    at = data.draw(st.integers(17, len(body) - 1))
    found, fault = text_and_fault(body[:at], key)
    assert text.startswith(found)
    assert "truncated" in fault or len(found) % 64 == 0, "a cut between two blocks cannot be detected"
    assert bool(fault) == (decoded_whole(body[:at], key, "utf-8", 10**6) is None)


@pytest.mark.parametrize("key", ["k.gz", "k.bz2", "k.zst", "k.sz"])
@given(text=st.binary(min_size=50, max_size=400), data=st.data())
def test_damage_is_detected_by_checksums(key: str, text: bytes, data: st.DataObject) -> None:
    """A wrong text must be followed by an error."""
    body = bytearray(COMPRESS[key](b"a" + text))
    # Byte 10 stays unchanged in snappy: it is the kind of a frame, and a reader skips frames of some kinds.
    at = data.draw(st.integers(11 if key == "k.sz" else 10, len(body) - 1))
    body[at] ^= 1 << data.draw(st.integers(0, 7))
    found, fault = text_and_fault(bytes(body), key)
    assert fault or found == b"a" + text


@named
def test_the_text_before_the_damage_is_returned(key: str) -> None:
    first = b"0123456789abcdef\n" * 9
    body = COMPRESS[key](first) + COMPRESS[key](b"second\n" * 50)[:-3]
    found, fault = text_and_fault(body, key)
    assert found.startswith(first)
    assert "truncated" in fault


@pytest.mark.parametrize("key", ["k.gz", "k.bz2", "k.zst"])
def test_zeros_behind_the_last_member_are_padding(key: str) -> None:
    """Otherwise an object that is padded with zeros would end in an error, although its text is complete. Other bytes
    may be a damaged member. If such bytes were skipped, the member's records would be lost silently.
    """
    body = COMPRESS[key](b"text")
    assert text_and_fault(body + bytes(1000), key) == (b"text", "")
    assert text_and_fault(body + bytes(9) + COMPRESS[key](b"more"), key) == (b"textmore", "")
    found, fault = text_and_fault(body + b"garbage", key)
    assert found == b"text"
    assert fault


@pytest.mark.parametrize("key", ["k.gz", "k.bz2", "k.zst"])
def test_a_decompression_bomb_is_read_in_pieces(key: str) -> None:
    """Otherwise a small compressed object could fill a task's memory with a single piece, before the limit on decoded
    bytes is checked.
    """
    many = COMPRESS[key](bytes(200 << 20) if key != "k.bz2" else bytes(60 << 20))
    read = 0

    def counted() -> Iterator[bytes]:
        nonlocal read
        for chunk in chunked(many, 1 << 10):
            read += 1
            yield chunk

    taken = 0
    for piece in decoded(counted(), key, "utf-8", len(many)):
        assert 0 < len(piece) <= UNPACKED_BYTES
        taken += len(piece)
        if taken == len(piece):
            assert read <= 2
    assert taken in (200 << 20, 60 << 20)


def test_zstd_windows_have_a_limit() -> None:
    wide = {
        zstd.CompressionParameter.window_log: 30,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    made = zstd.ZstdCompressor(options=wide)
    body = made.compress(b"x" * 1000) + made.flush()
    found, fault = text_and_fault(body, "k.zst")
    assert found == b""
    assert "zstd" in fault


def test_skippable_frames_of_zstd_are_skipped() -> None:
    skipped = b"\x5a\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"
    body = skipped + zstd.compress(b"one ") + skipped + zstd.compress(b"two") + skipped
    assert text_and_fault(body, "k") == (b"one two", "")


@pytest.mark.parametrize(
    "body",
    [
        b"\x7f\xff\xff\xff" + bytes(20),
        b"\0\0\0\x10\x7f\xff\xff\xff" + bytes(20),
        b"\0\0\0\x04\0\0\0\x06\xff\xff\xff\xff\x0f\0",
        b"\0\0\0\x04\0\0\0\x01\0",
        b'{"a":1}\n{"a":2}\n',
    ],
)
def test_a_file_that_is_not_hadoop_snappy_is_an_error(body: bytes) -> None:
    found, fault = text_and_fault(body, "k.snappy")
    assert found == b""
    assert "snappy" in fault


def test_an_invalid_snappy_frame_is_an_error() -> None:
    mark = b"\xff\x06\x00\x00sNaPpY"
    good = snappy_framed(b"text")
    assert text_and_fault(mark + b"\x80\x03\0\0abc" + good, "k.sz") == (b"text", "")
    for bad in (b"\x02\x01\0\0a", b"\x00\xff\xff\xff", b"\x01\x05\0\0\0\0\0\0x", b"\xff\x06\x00\x00sNaPpy"):
        found, fault = text_and_fault(good + bad + good, "k.sz")
        assert found == b"text"
        assert "snappy" in fault


def test_content_takes_precedence_over_the_name() -> None:
    assert compression_of(gzip.compress(b"x")[:16], "k.zst") == "gzip"
    assert compression_of(snappy_framed(b"x")[:16], "k.snappy") == "snappy"
    assert compression_of(b"plain text.....", "k.gz") is None
    assert compression_of(b"BZh is a text", "k") is None
    assert compression_of(b"", "k.snappy") is None
    assert text_and_fault(b"plain", "k.gz") == (b"plain", "")
    assert is_text(b"plain", "k.gz", "utf-8")
    assert not is_text(b"plain", "k", "latin-1")
    assert not is_text("plain".encode("utf-16"), "k", "utf-8")


def test_compressed_and_encoded_texts_are_read_record_by_record() -> None:
    assert by_record("a/b.jsonl.GZ", "utf-8")
    assert by_record("b.csv", "cp1252")
    assert not by_record("b.csv", "UTF8")


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1252", "shift_jis", "utf-7"]
)
@given(
    text=st.text('aé€\n"', max_size=30),
    size=st.integers(1, 9),
    compressed=st.booleans(),
    mark=st.booleans(),
)
def test_encodings_are_decoded(encoding: str, text: str, size: int, compressed: bool, mark: bool) -> None:
    """A chunk may end in the middle of a character. If each chunk were decoded separately, such a character would be
    damaged, and its record would be a reject.
    """
    if encoding == "shift_jis":
        text = text.replace("é", "日").replace("€", "本")
    body = text.encode(encoding)
    if mark and encoding in ("utf-16-le", "utf-16-be"):
        body = "\ufeff".encode(encoding) + body
    if compressed:
        body = gzip.compress(body)
    assert text_and_fault(body, "k", size, encoding) == (text.encode(), "")


def test_a_byte_order_mark_takes_precedence_over_the_setting() -> None:
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        assert text_and_fault("\ufeffé\n".encode(encoding), "k", 3, "cp1252") == ("é\n".encode(), "")
    assert text_and_fault(b"\xef\xbb\xbf\xc3\xa9", "k", 3, "cp1252") == (b"\xef\xbb\xbf\xc3\xa9", "")


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"ok\nb\x81d\nok", "cp1252"),
        ("ok\n".encode("utf-16-le") + b"b\0\0\xdcd\0\n\0o\0k\0", "utf-16-le"),
        (b"ok\nb\xffd\nok", "ascii"),
    ],
)
def test_only_the_line_with_bytes_outside_the_encoding_is_damaged(body: bytes, encoding: str) -> None:
    """If decoding stopped at bytes that the encoding does not allow, all later lines would be lost. If a valid
    character replaced the bytes, the line would become a row with a wrong value.
    """
    text, fault = text_and_fault(body, "k", 3, encoding)
    first, bad, last = text.split(b"\n")
    assert (first, last, fault) == (b"ok", b"ok", "")
    assert bad.startswith(b"b")
    assert bad.endswith(b"d")
    with pytest.raises(UnicodeError):
        bad.decode()


@pytest.mark.parametrize(
    "encoding", ["utf-8", "UTF8", "latin-1", "cp1252", "utf-16", "utf-16-be", "gb18030", "cp037"]
)
def test_known_encodings_are_accepted(encoding: str) -> None:
    check_encoding(encoding)


@pytest.mark.parametrize(
    "encoding", ["", "no-such", "zip", "rot13", "base64", "punycode", "unicode_escape", "idna"]
)
def test_names_that_are_not_text_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(UsageError, match="encoding"):
        check_encoding(encoding)
