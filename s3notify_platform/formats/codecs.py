"""Compression and text encodings: turns chunks of an object's bytes into chunks of its text in UTF-8.

Guarantees. For any content, memory is a few chunks, because data is decompressed piece by piece (`UNPACKED_BYTES`).
zstd also keeps its window in memory, at most 2 ** `MAX_ZSTD_WINDOW_LOG` bytes. Time has a limit, too: an object is
decompressed to at most `most_decoded` bytes. Concatenated members are read one after the other, and zeros between
members are skipped. A stream that is truncated, damaged or too long returns everything before the damage or limit, then
raises `CorruptError` with the reason. Bytes that the encoding does not allow damage only the record that contains them:
such bytes become invalid UTF-8, which every format rejects.

The compression and encoding of an object are found in this way. The object's content decides first. A byte order mark
shows the encoding. No text begins with the first bytes of gzip, bz2, zstd or framed snappy, so these bytes show the
compression. Hadoop's snappy blocks do not begin with fixed bytes. So an object with the suffix `.snappy` that is not
framed snappy is read as Hadoop's blocks. Without a byte order mark, the source's setting decides the encoding. An
object with any other compression suffix, but without compressed content, is read unchanged.
"""

import bz2
import codecs
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final, Literal, Protocol

import cramjam

from s3notify_platform.kernel.errors import CorruptError, UsageError
from s3notify_platform.kernel.limits import (
    MAX_DECODED_BYTES,
    MAX_DECODED_PER_BYTE,
    MAX_SNAPPY_BLOCK_BYTES,
    MAX_ZSTD_WINDOW_LOG,
)

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Compression = Literal["gzip", "bz2", "zstd", "snappy", "hadoop-snappy"]

SUFFIXES: Final = frozenset({"gz", "zst", "bz2", "snappy", "sz"})
"""Suffixes of compressed objects."""

UNPACKED_BYTES: Final = 1 << 20
HEAD_BYTES: Final = 16
"""Number of bytes at the beginning of an object that show its compression and encoding."""

_INPUT_BYTES: Final = 64 << 10
_SNAPPY_MAGIC: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_FRAME_BYTES: Final = 4 + 32 + 65536 + 65536 // 6
"""Maximum bytes of a frame's content: the checksum, and the largest compressed size of 64 KB."""

_BZ2_BLOCKS: Final = (b"1AY&SY", b"\x17rE8P\x90")
_BEGINNINGS: Final[dict[str, tuple[Compression, tuple[bytes, ...]]]] = {
    "gz": ("gzip", (b"\x1f\x8b\x08",)),
    "bz2": ("bz2", tuple(b"BZh%d" % level + block for level in range(1, 10) for block in _BZ2_BLOCKS)),
    "zst": ("zstd", (b"\x28\xb5\x2f\xfd", *(bytes([n]) + b"\x2a\x4d\x18" for n in range(0x50, 0x60)))),
    "sz": ("snappy", (_SNAPPY_MAGIC,)),
}
"""The first bytes of objects with these suffixes."""

_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NOT_ENCODINGS: Final = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined"})


def check_encoding(encoding: str) -> None:
    """Raises `UsageError` if no text encoding has this name."""
    try:
        found = codecs.lookup(encoding)
        sample = "".join(map(chr, range(32, 127))) + "\r\n"
        fits = found.name not in _NOT_ENCODINGS and sample.encode(encoding).decode(encoding) == sample
    except (LookupError, UnicodeError, TypeError, ValueError):
        fits = False
    if not fits:
        raise UsageError(f"encoding {encoding!r}: not a text encoding; use one like utf-8, cp1252, utf-16")


def without_suffix(name: str) -> str:
    """Returns a name without its compression suffix. Pure."""
    stem, _, suffix = name.rpartition(".")
    return stem if stem and suffix.lower() in SUFFIXES else name


def by_record(key: str, encoding: str) -> bool:
    """True if key and encoding show that a text can only be read from its beginning. Pure.

    If only the content shows a compression or encoding, the result is false. The reader of the first split then finds
    the compression or encoding.
    """
    return without_suffix(key) != key or not _is_utf8(encoding)


def is_text(head: bytes, key: str, encoding: str) -> bool:
    """True if an object that begins with `head` is plain text: not compressed, in UTF-8. Pure."""
    return compression_of(head, key) is None and _encoding_of(head, encoding) is None


def compression_of(head: bytes, key: str) -> Compression | None:
    """Returns the compression of an object that begins with these `HEAD_BYTES`. Pure."""
    if head.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if head.startswith(b"BZh") and head[4:10] in _BZ2_BLOCKS:
        return "bz2"
    if head.startswith(b"\x28\xb5\x2f\xfd") or (head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F):
        return "zstd"
    if head.startswith(_SNAPPY_MAGIC):
        return "snappy"
    suffix = key.rpartition(".")[2].lower()
    if suffix == "snappy":
        return "hadoop-snappy" if head else None
    named, beginnings = _BEGINNINGS.get(suffix, (None, ()))
    return named if any(_nearly(head, beginning) for beginning in beginnings) else None


def _nearly(head: bytes, beginning: bytes) -> bool:
    """True if `head` begins with `beginning`, except for at most one damaged byte. A shorter `head` must equal the
    first bytes of `beginning`.
    """
    differing = sum(one != other for one, other in zip(head, beginning, strict=False))
    return len(head) > 0 and differing <= (len(head) >= len(beginning))


def most_decoded(size: int) -> int:
    """Returns the maximum decoded bytes of an object of `size` bytes: decompressed text, or rows. Pure."""
    return max(MAX_DECODED_BYTES, size * MAX_DECODED_PER_BYTE)


def decoded(chunks: Iterable[bytes], key: str, encoding: str, size: int) -> Iterator[bytes]:
    """Yields the text of an object in UTF-8. `chunks` has all bytes of the object, whose number is `size`. A UTF-8 byte
    order mark stays in place.

    Raises `CorruptError` after the last piece that could be decoded, or that `most_decoded` allows.
    """
    head, rest = peek(iter(chunks), HEAD_BYTES)
    compression = compression_of(head, key)
    match compression:
        case "gzip":
            rest = _members(rest, "gzip", _Gzip)
        case "bz2":
            rest = _members(rest, "bz2", bz2.BZ2Decompressor)
        case "zstd":
            rest = _members(rest, "zstd", new_zstd)
        case "snappy":
            rest = _snappy_frames(rest)
        case "hadoop-snappy":
            rest = _hadoop_blocks(rest)
        case None:
            pass
    if compression:
        rest = _bounded(rest, compression, most_decoded(size))
    head, rest = peek(rest, 4)
    found = _encoding_of(head, encoding)
    yield from rest if found is None else _transcoded(rest, found)


def decoded_whole(body: bytes, key: str, encoding: str, limit: int) -> bytes | None:
    """Returns the text of a small object; None if the object is damaged, or its text is longer than `limit` bytes."""
    if is_text(body[:HEAD_BYTES], key, encoding):
        return body
    pieces: list[bytes] = []
    size = 0
    try:
        for piece in decoded([body], key, encoding, len(body)):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                return None
    except CorruptError:
        return None
    return b"".join(pieces)


def peek(chunks: Iterator[bytes], count: int) -> tuple[bytes, Iterator[bytes]]:
    """Returns the first `count` bytes (fewer only if the chunks end earlier), and an iterator over all chunks.

    If `CorruptError` ends the chunks within these bytes, the returned iterator raises the error after the last chunk.
    """
    first: list[bytes] = []
    size = 0

    def failing(error: CorruptError) -> Iterator[bytes]:
        yield from first
        raise error

    try:
        while size < count and (chunk := next(chunks, None)) is not None:
            first.append(chunk)
            size += len(chunk)
    except CorruptError as error:
        return b"".join(first)[:count], failing(error)
    return b"".join(first)[:count], chain(first, chunks)


# Compressions


def _bounded(pieces: Iterator[bytes], name: str, most: int) -> Iterator[bytes]:
    """Yields the first `most` bytes. Raises `CorruptError` if there are more."""
    left = most
    for piece in pieces:
        if len(piece) > left:
            if left:
                yield piece[:left]
            raise CorruptError(f"{name}: more than {most} bytes, decoded")
        left -= len(piece)
        yield piece


class _Decompressor(Protocol):
    """One member of a stream, with the interface of the standard library's bz2 and zstd."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes: ...


class _Gzip:
    """A gzip member. zlib returns unconsumed input to its caller, whereas the other decompressors store unconsumed
    input.
    """

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int = -1, /) -> bytes:
        piece = self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)
        self.needs_input = not self._zlib.unconsumed_tail and len(piece) < max_length
        return piece


def new_zstd() -> _Decompressor:
    """Returns a decompressor of one stream, with a window of at most 2 ** `MAX_ZSTD_WINDOW_LOG` bytes."""
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: MAX_ZSTD_WINDOW_LOG})


def _members(chunks: Iterator[bytes], name: str, new: Callable[[], _Decompressor]) -> Iterator[bytes]:
    member: _Decompressor | None = None
    try:
        # Slices are small because, at the end of a member, the remaining bytes of the slice are copied.
        for data in slices(chunks, _INPUT_BYTES):
            left = data
            while left:
                if member is None:
                    left = left.lstrip(b"\0")
                    if not left:
                        break
                    member = new()
                piece = member.decompress(left, UNPACKED_BYTES)
                while piece or not (member.eof or member.needs_input):
                    if piece:
                        yield piece
                    piece = b"" if member.eof else member.decompress(b"", UNPACKED_BYTES)
                left = member.unused_data if member.eof else b""
                if member.eof:
                    member = None
    except (zlib.error, zstd.ZstdError, OSError, ValueError) as error:
        raise CorruptError(f"{name}: {error}") from error
    if member is not None:
        raise CorruptError(f"{name}: truncated")


def slices(chunks: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yields the same bytes in chunks of at most `size`."""
    for chunk in chunks:
        for place in range(0, len(chunk), size):
            yield chunk[place : place + size]


class _Stream:
    """Reads exact numbers of bytes from chunks."""

    def __init__(self, chunks: Iterator[bytes], name: str) -> None:
        self._chunks = chunks
        self._name = name
        self._waiting = b""
        self._place = 0

    def take(self, count: int, *, may_end: bool = False) -> bytes:
        """Returns exactly `count` bytes, or b"" if the stream has ended and `may_end` allows this."""
        if len(self._waiting) - self._place < count:
            parts = [self._waiting[self._place :]]
            size = len(parts[0])
            while size < count and (chunk := next(self._chunks, None)) is not None:
                parts.append(chunk)
                size += len(chunk)
            self._waiting, self._place = b"".join(parts), 0
            if size < count and not (may_end and size == 0):
                raise CorruptError(f"{self._name}: truncated")
        taken = self._waiting[self._place : self._place + count]
        self._place += count
        return taken


def _snappy_frames(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Decompresses the framing format: https://github.com/google/snappy/blob/main/framing_format.txt."""
    stream = _Stream(chunks, "snappy")
    while head := stream.take(4, may_end=True):
        kind, length = head[0], int.from_bytes(head[1:], "little")
        if 0x02 <= kind <= 0x7F:
            raise CorruptError(f"snappy: a frame of the unknown kind {kind:#x}")
        if kind <= 0x01 and not 4 <= length <= _SNAPPY_FRAME_BYTES:
            raise CorruptError(f"snappy: a frame of {length} bytes")
        body = stream.take(length)
        if kind == 0xFF and head + body != _SNAPPY_MAGIC:
            raise CorruptError("snappy: a wrong stream identifier")
        if kind <= 0x01:
            # Each frame is decompressed as a separate stream, which verifies the frame's checksum.
            yield _snappy(cramjam.snappy.decompress, _SNAPPY_MAGIC + head + body)
        elif kind != 0xFF and any(_is_data(of, head[1:] + body) for of in (b"\x00", b"\x01")):
            raise CorruptError(f"snappy: a frame of data has the kind of a skippable frame, {kind:#x}")


def _is_data(kind: bytes, frame: bytes) -> bool:
    """True if `frame`, which follows the byte `kind`, is a frame of data with the right checksum."""
    with suppress(cramjam.DecompressionError):
        return bool(cramjam.snappy.decompress(_SNAPPY_MAGIC + kind + frame))
    return False


def _hadoop_blocks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yields the texts of Hadoop's blocks.

    A block has the big-endian length of its text, then parts, each with its own length.
    """
    stream = _Stream(chunks, "snappy blocks")
    while head := stream.take(4, may_end=True):
        missing = int.from_bytes(head)
        while missing > 0:
            length = int.from_bytes(stream.take(4))
            if max(missing, length) > MAX_SNAPPY_BLOCK_BYTES:
                raise CorruptError(f"snappy blocks: a block of {max(missing, length)} bytes")
            part = stream.take(length)
            if snappy_length(part) > missing:
                raise CorruptError("snappy blocks: a part is longer than its block")
            text = _snappy(cramjam.snappy.decompress_raw, part)
            if not text:
                raise CorruptError("snappy blocks: an empty part")
            missing -= len(text)
            yield text


def snappy_length(part: bytes) -> int:
    """Returns the decompressed length that a raw snappy block declares.

    Raises `CorruptError` if the block declares no length.
    """
    length = 0
    for number, octet in enumerate(part[:5]):
        length |= (octet & 0x7F) << (7 * number)
        if octet < 0x80:
            return length
    raise CorruptError("snappy blocks: a part without length")


def _snappy(decompress: Callable[[bytes], Any], data: bytes) -> bytes:
    try:
        return bytes(decompress(data))
    except cramjam.DecompressionError as error:
        raise CorruptError(f"snappy: {error}") from error


# Encodings


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def _encoding_of(head: bytes, declared: str) -> str | None:
    """Returns the encoding of a text that begins with `head`; None for UTF-8. A byte order mark takes precedence."""
    if head.startswith(codecs.BOM_UTF8):
        return None
    # The byte order mark of UTF-32-LE, read as UTF-16, is a byte order mark and one NUL character.
    two_bytes = codecs.lookup(declared).name.startswith("utf-16")
    for mark, name in _MARKS:
        if head.startswith(mark) and not (two_bytes and name == "utf-32-le"):
            return name
    return None if _is_utf8(declared) else declared


def _damaged(error: UnicodeError) -> tuple[str, int]:
    """Puts a lone surrogate, which becomes invalid UTF-8, in place of bytes that the encoding does not allow."""
    assert isinstance(error, UnicodeDecodeError)
    return "\udcff", error.end


codecs.register_error("s3notify.damaged", _damaged)


def _transcoded(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("s3notify.damaged")
    first = True
    for data in chain(slices(chunks, UNPACKED_BYTES), [None]):
        text = decoder.decode(b"" if data is None else data, data is None)
        if first and text:
            text, first = text.removeprefix("\ufeff"), False
        if text:
            yield text.encode("utf-8", "surrogatepass")
