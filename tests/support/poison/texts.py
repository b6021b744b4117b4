"""Bad texts: JSON lines, JSON documents, CSV."""

import gzip
from collections.abc import Callable
from functools import partial

import pyarrow as pa

MAKE = Callable[[], bytes]


def deep(levels: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    """One line that is nested to this depth."""
    inside = levels - 1
    return f'{{"id":7,"deep":{opening * inside}1{closing * inside}}}\n'.encode()


def new_keys(lines: int) -> bytes:
    """Lines, each of which has a new key."""
    return b"".join(b'{"user%d":1}\n' % n for n in range(lines))


def wide(names: int) -> bytes:
    """A file with one record, which has this number of fields."""
    return b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(names)) + b"}\n"


def nested_keys(lines: int, names: int) -> bytes:
    """`lines` empty records, then one record with `names` fields. Each field is an object with the same `names`
    keys.
    """
    keys = [b'"k%d":' % n for n in range(names)]
    inner = b"{" + b",".join(key + b"1" for key in keys) + b"}"
    return b"{}\n" * lines + b"{" + b",".join(key + inner for key in keys) + b"}\n"


def new_keys_in_list(items: int) -> bytes:
    """A list of objects, each with a different key."""
    return b'{"list":[' + b",".join(b'{"u%d":1}' % n for n in range(items)) + b"]}\n"


def long_line(codec: str, size: int, *, before: bytes, behind: bytes) -> bytes:
    """A file with one value of this size, compressed to a few bytes."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as packed:
        packed.write(before)
        for place in range(0, size, 1 << 20):
            packed.write(b"x" * min(1 << 20, size - place))
        packed.write(behind)
    found: bytes = sink.getvalue().to_pybytes()
    return found


LINE = {"before": b'{"id":1}\n{"id":2,"name":"', "behind": b'"}\n{"id":3}\n'}


def zstd_of_window(exponent: int) -> bytes:
    """A frame with one stored block. The frame's header says that a reader needs a window of `2 ** exponent` bytes."""
    text = b'{"id":1}\n'
    block = (len(text) << 3 | 1).to_bytes(3, "little")
    return b"\x28\xb5\x2f\xfd\0" + bytes([exponent - 10 << 3]) + block + text


def nested_gzip(times: int) -> bytes:
    body = b'{"id":1}\n'
    for _ in range(times):
        body = gzip.compress(body, mtime=0)
    return body


TEXTS: dict[str, MAKE] = {
    **{f"deep-{n}.jsonl": partial(deep, n) for n in (32, 33, 100, 150, 200, 1100, 50_000)},
    **{f"deep-lists-{n}.jsonl": partial(deep, n, "[", "]") for n in (33, 150, 1100, 50_000)},
    "deep-open.jsonl": lambda: b"[" * 50_000 + b"\n" + b'{"a":' * 50_000 + b"}\n",
    "deep-strings.jsonl": lambda: b'{"id":1,"name":"' + b'[{\\"' * 5000 + b'"}\n',
    "new-keys-3000.jsonl": partial(new_keys, 3000),
    "new-keys-10000.jsonl": partial(new_keys, 10_000),
    "wide.jsonl": partial(wide, 100_000),
    "nested-keys.jsonl": partial(nested_keys, 20_000, 90),
    "new-keys-in-list.jsonl": partial(new_keys_in_list, 6000),
    "reserved.jsonl": lambda: b'{"_key":1}\n{"_KEY":1}\n{"_rescued":1}\n{"":1}\n{"_slot":{"a":1}}\n',
    "names.jsonl": '{"a.b":1,"a`b":2,"a b":3,"🙂":4,"Aa":5,"aA":6,"ID":7}\n'.encode,
    "twins-inside.jsonl": lambda: b'{"s":{"a":1,"A":2}}\n{"l":[{"x":1},{"X":2}]}\n',
    "types.jsonl": lambda: b'{"t":1}\n{"t":"x"}\n{"t":[1]}\n{"t":{"a":1}}\n{"t":null}\n',
    "twice.jsonl": lambda: b'{"id":1,"id":2}\n',
    "surrogate.jsonl": lambda: b'{"id":1,"name":"\\ud800"}\n{"\\ud800":1}\n',
    "bytes.jsonl": lambda: b'{"name":"\xff"}\n\x00\x00\x00\n\xed\xa0\x80\n',
    "numbers.jsonl": lambda: b'{"id":1e999}\n{"id":' + b"9" * 100_000 + b'}\n{"id":-}\n{"id":NaN}\n',
    "empty-objects.jsonl": lambda: b"{}\n" * 2000,
    "many-empty-objects.jsonl": lambda: b"{}\n" * 50_000,
    "many-empty-fields.csv": lambda: b"id,name\n" + b",\n" * 50_000,
    "bad-lines.jsonl": lambda: b"bad\n" * 2000,
    "unclosed.jsonl": lambda: b'{"id":"' + b"x" * (3 << 20),
    "lines-as-array.jsonl": lambda: b'[\n{"id":1},\n{"id":2}\n]\n',
    "document.json": lambda: b'{\n "data": {\n  "items": [{"id": 1}]\n }\n}\n',
    "cut-document.json": lambda: b'[\n {"id": 1},\n {"id"',
    "null.jsonl": lambda: b"null\nnull\n",
    "bomb.jsonl.gz": lambda: gzip.compress(b'{"id":1}\n' * 200_000),
    "line-1-mb.jsonl": lambda: b'{"id":1}\n{"id":2,"name":"' + b"x" * (1 << 20) + b'"}\n',
    "line-70-mb.jsonl.gz": lambda: long_line("gzip", 70_000_000, **LINE),
    "line-900-mb.jsonl.zst": lambda: long_line("zstd", 900_000_000, **LINE),
    "field-70-mb.csv.gz": lambda: long_line("gzip", 70_000_000, before=b"id,name\n1,", behind=b"\n2,b\n"),
    **{f"window-{n}.jsonl.zst": partial(zstd_of_window, n) for n in (24, 27, 31, 41)},
    "nested.jsonl.gz": lambda: nested_gzip(2),
    "nested-deep.jsonl.gz": lambda: nested_gzip(50),
    "nested-codecs.jsonl.zst": lambda: gzip.compress(zstd_of_window(20), mtime=0),
    "cut.jsonl.gz": lambda: gzip.compress(b'{"id":1}\n' * 1000)[:-20],
    "semicolons.csv": lambda: b"id;name;at\n1;ann;2024-01-01\n",
    "tabs.csv": lambda: b"id\tname\n1\tann\n",
    "no-header.csv": lambda: b"1331,17.72,2024-01-01\n1332,3.10,2024-01-02\n",
    "reserved.csv": lambda: b"_key,_slot,\n1,2,3\n",
    "names.csv": 'a.b,a`b,a b,🙂,Aa,aA,"x,y"\n1,2,3,4,5,6,7\n'.encode,
    "header-twice.csv": lambda: b"id,id\n1,2\n",
    "header-wide.csv": lambda: b",".join(b"c%d" % n for n in range(50_000)) + b"\n1\n",
    "header-long.csv": lambda: b"x" * (2 << 20) + b"\n1\n",
    "header-bytes.csv": lambda: b"\xff\xfe\xff,b\n1,2\n",
    "ragged.csv": lambda: b"id,name\n" + b"1\n1,2,3\n" * 100,
    "unclosed.csv": lambda: b'id,name\n1,"' + b"x\n" * 300,
    "quotes.csv": lambda: b'id,name\n1,a"b\n2,"a"b\n3,"a""b"\n4,"\n',
    "empty-fields.csv": lambda: b"id,name\n" + b",\n" * 2000,
    "returns.csv": lambda: b"id,name\r1,ann\r2,bob\r",
    "binary.csv": lambda: bytes(range(256)) * 20,
}
