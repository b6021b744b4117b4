"""Every compression that the platform reads, as other programs write it."""

import bz2
import gzip
import sys
from collections.abc import Callable

import cramjam

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def snappy_framed(text: bytes) -> bytes:
    return bytes(cramjam.snappy.compress(text))


def hadoop_snappy(text: bytes, block: int = 64, part: int = 24) -> bytes:
    """Snappy blocks as Hadoop's BlockCompressorStream writes them."""
    made = b""
    for at in range(0, len(text), block):
        one = text[at : at + block]
        made += len(one).to_bytes(4)
        for low in range(0, len(one), part):
            raw = bytes(cramjam.snappy.compress_raw(one[low : low + part]))
            made += len(raw).to_bytes(4) + raw
    return made


def zstd_checked(text: bytes) -> bytes:
    return zstd.compress(text, options={zstd.CompressionParameter.checksum_flag: 1})


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "k.gz": gzip.compress,
    "k.bz2": bz2.compress,
    "k.zst": zstd_checked,
    "k.sz": snappy_framed,
    "k.snappy": hadoop_snappy,
}
