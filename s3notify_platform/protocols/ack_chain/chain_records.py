r"""The records of a chain: their keys and values, and the state that they have together. Pure.

All keys of a chain begin with `{tag}\0`. The head is one record; the keys of all other records contain the head's
identity.

| key after `{tag}\0` | value | |
|---|---|---|
| `head` | JSON | the facts of the chain; never changed |
| `{identity}.closed` | JSON | how the chain ended: acked or failed; the first such record decides |
| `{identity}.claimed` | an operation | the operation that gets `Acked`, if no stamp saw the end first |
| `{identity}.s.{ended}.{others}.{begun}` | | a stamp by names |
| `{identity}.v.{digest}` | `{ended}.{others}.{begun}` | a stamp by names that is too long for a key |
| `{identity}.o.{operation}.{stamp}` | | a raw stamp, in hex, under the digest of its operation id |

The identity is a digest of the head's version. So the key of a record shows to which chain of the tag the record
belongs. `ended` is a bitmap of the head's children. `others` names the children that this stamp ends and that another
stamp began. `begun` names the children that this stamp begins (`names.key_text`).
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from blake3 import blake3

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import Record, Version
from s3notify_platform.protocols.ack_chain.names import (
    bits_of,
    dump_names,
    in_order,
    key_text,
    load_names,
    of_key_text,
    places,
)
from s3notify_platform.protocols.ack_chain.stamps import ChainState, Ended, Tag, xor_all

KEY_CHARS_MAX: Final = 240
"""The maximum number of characters of a key that contains names, counted after a record store on a bucket has quoted
the key. If the key would be longer, the names are written to the record's value.

Many servers keep an object in a file whose name is the last part of the object's key. A file name has at most 255
bytes. SeaweedFS lists an object with a longer name under another name.
"""

OPERATION_BYTES: Final = 16

_PLAIN: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
_END: Final = "\0"
_HEAD, _CLOSED, _CLAIMED = "head", "closed", "claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The facts of a chain that are fixed when the chain is opened. A `Chain` never changes, so a process that has the
    `Chain` can stamp without reading the head. A `Chain` is small, and can be pickled.
    """

    tag: Tag
    version: Version
    """The record version of the head, which distinguishes two chains with the same tag."""
    names: str = "[]"
    """The children with which the chain was opened, packed by `dump_names`."""
    stamp: bytes = b""
    """The XOR that raw stamps must bring to zero; b"" for a chain with named children."""
    deadline_seconds: float | None = None
    created_ms: int = 0
    payload: str = ""

    @classmethod
    def of(cls, tag: str, version: str, children: Iterable[str]) -> Self:
        """A chain whose version and children the caller has stored."""
        return cls(tag=Tag(tag), version=Version(version), names=dump_names(children))

    @property
    def children(self) -> frozenset[str]:
        """The children with which the chain was opened."""
        return frozenset(places(self.names))

    @property
    def identity(self) -> str:
        """The prefix of the keys of the chain's records, after the tag."""
        return identity_of(self.version)

    def key(self, rest: str) -> str:
        """The key of a record that belongs to this chain only."""
        return f"{prefix_of(self.tag)}{self.identity}.{rest}"

    @property
    def closed_key(self) -> str:
        """The key of the record that says how the chain ended."""
        return closed_key(self.tag, self.version)

    @property
    def claimed_key(self) -> str:
        """The key of the record that names the operation which gets `Acked`."""
        return self.key(_CLAIMED)


def prefix_of(tag: str) -> str:
    """The beginning of all keys of a tag."""
    return tag + _END


def tag_of(key: str) -> str:
    """The tag of a key."""
    return key.partition(_END)[0]


def head_key(tag: str) -> str:
    """The key of a tag's head."""
    return prefix_of(tag) + _HEAD


def closed_key(tag: str, version: Version) -> str:
    """The key of the record that says how a chain ended; `version` is the version of the chain's head."""
    return f"{prefix_of(tag)}{identity_of(version)}.{_CLOSED}"


def is_head(key: str) -> bool:
    """True if this is the key of a head."""
    return key.endswith(_END + _HEAD)


def is_closed(key: str) -> bool:
    """True if this is the key of a record that says how a chain ended."""
    return key.endswith("." + _CLOSED)


def has_value(key: str) -> bool:
    """True if the record's content is in its value, not only in its key. False for a head: a scan needs only the head's
    version.
    """
    rest = key.rpartition(_END)[2].partition(".")[2]
    return rest in (_CLOSED, _CLAIMED) or rest.startswith("v.")


def identity_of(version: Version) -> str:
    """The identity of a chain; `version` is the version of the chain's head."""
    return blake3(version.encode("utf-8")).hexdigest(length=8)


def belongs_to(key: str, identity: str) -> bool:
    """True if the record with this key belongs to the chain with this identity; false for the chain's head."""
    return key.rpartition(_END)[2].startswith(identity + ".")


def operation_of(operation_id: str) -> str:
    """The digest of an operation id. Records contain this digest instead of the id."""
    return blake3(operation_id.encode("utf-8")).hexdigest(length=OPERATION_BYTES)


# Values


def encode_head(chain: Chain, unique: str) -> bytes:
    """The head's value. `unique` makes the value differ from the values of all other calls."""
    body = {
        "v": 2,
        "id": unique,
        "names": chain.names,
        "stamp": chain.stamp.hex(),
        "deadline_seconds": chain.deadline_seconds,
        "created_ms": chain.created_ms,
        "payload": chain.payload,
    }
    return _json(body)


def decode_head(tag: str, head: Record) -> Chain:
    """Decodes the chain of this head; raises `CorruptError` if the record is not a head."""
    body = _of_json(tag, head.value)
    try:
        if body["v"] != 2:
            raise CorruptError(f"ack chain {tag!r} has version {body['v']}; this release reads version 2")
        return Chain(
            tag=Tag(tag),
            version=head.version,
            names=body["names"],
            stamp=bytes.fromhex(body["stamp"]),
            deadline_seconds=body["deadline_seconds"],
            created_ms=body["created_ms"],
            payload=body["payload"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"ack chain {tag!r} has an unreadable head: {head.value[:80]!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Closed:
    """How a chain ended. `operation`: the operation of the stamp that saw the end first and so gets `Acked`; "" if no
    stamp saw the end first.
    """

    status: Ended
    operation: str = ""
    reason: str | None = None
    missing: str = "[]"
    """The missing children, packed; empty if the chain was acked."""
    expires_ms: int


def encode_closed(closed: Closed) -> bytes:
    """The value of the record that says how a chain ended."""
    body = {name: getattr(closed, name) for name in Closed.__slots__}
    return _json(body)


def decode_closed(key: str, value: bytes) -> Closed:
    """Decodes the value of the record that says how a chain ended; raises `CorruptError` for any other value."""
    try:
        return Closed(**_of_json(key, value))
    except TypeError as error:
        raise CorruptError(f"{key!r} does not say how a chain ended: {value[:80]!r}") from error


def _json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _of_json(key: str, value: bytes) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(value)
    except ValueError as error:
        raise CorruptError(f"ack chain {key!r} has a value that is not JSON: {value[:80]!r}") from error
    return body


# Stamps


def stamp_record(chain: Chain, ended: Iterable[str], begun: Iterable[str]) -> tuple[str, bytes]:
    """Key and value of a stamp by names. Equal names give equal records, even if different workers stamp."""
    known, ended, begun = places(chain.names), frozenset(ended), frozenset(begun)
    bits = bits_of(known[name] for name in ended & known.keys())
    others = ended - known.keys()
    texts = ".".join(
        (
            key_text(bits.to_bytes((bits.bit_length() + 7) // 8, "little")),
            key_text(dump_names(others).encode()) if others else "",
            key_text(dump_names(begun).encode()) if begun else "",
        )
    )
    key = chain.key(f"s.{texts}")
    if sum(1 if byte in _PLAIN else 3 for byte in key.encode()) <= KEY_CHARS_MAX:
        return key, b""
    return chain.key(f"v.{blake3(texts.encode()).hexdigest(length=16)}"), texts.encode()


def raw_record(chain: Chain, stamp: bytes, operation: str) -> tuple[str, bytes]:
    """Key and value of a raw stamp."""
    return chain.key(f"o.{operation}.{stamp.hex()}"), b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The content of one scan of a chain. The scan is not a snapshot: two records may have been read at different
    moments.
    """

    chain: Chain
    keys: frozenset[str]
    children: frozenset[str]
    missing: frozenset[str]
    residue: bytes
    """The XOR of the initial stamp and all raw stamps."""
    closed: Closed | None
    claimed: str
    """The operation that has claimed `Acked`; "" if there was no claim."""

    @property
    def done(self) -> bool:
        """True if the XOR is zero, which means that each child that was begun has ended."""
        return not self.missing and not any(self.residue)


def seen(chain: Chain, records: Sequence[Record]) -> Seen:
    """Evaluates the records of this chain; skips records of other chains with the same tag."""
    mine = {record.key: record.value for record in records if belongs_to(record.key, chain.identity)}
    start = len(chain.key(""))
    bits, others, begun = 0, set[str](), set[str]()
    stamps = [chain.stamp]
    for key, value in mine.items():
        match key[start:].split("."):
            case ["s", *texts]:
                pass
            case ["v", _]:
                texts = value.decode("ascii", "replace").split(".")
            case ["o", _, stamp]:
                stamps.append(bytes.fromhex(stamp))
                continue
            case _:
                continue
        if len(texts) != 3:
            raise CorruptError(f"{key!r} is not the stamp of an ack chain")
        bits |= int.from_bytes(of_key_text(texts[0]), "little")
        others |= _named(texts[1])
        begun |= _named(texts[2])
    first = places(chain.names)
    # A set contains each child once: two stamps that end the same child do not cancel each other out.
    ended = {name for name, place in first.items() if bits >> place & 1} | others
    children = first.keys() | begun
    closed, claimed = mine.get(chain.closed_key), mine.get(chain.claimed_key)
    return Seen(
        chain=chain,
        keys=frozenset(mine),
        children=frozenset(children),
        missing=frozenset(children - ended),
        residue=xor_all(stamps),
        closed=None if closed is None else decode_closed(chain.closed_key, closed),
        claimed="" if claimed is None else claimed.decode("ascii", "replace"),
    )


def _named(text: str) -> frozenset[str]:
    return load_names(of_key_text(text).decode("utf-8", "replace")) if text else frozenset()


def facts_of(found: Seen) -> ChainState:
    """Converts the content of a scan to the state that callers get."""
    closed = found.closed
    missing = found.missing if closed is None else load_names(closed.missing)
    return ChainState(
        tag=found.chain.tag,
        status=closed.status if closed is not None else "open",
        children=tuple(in_order(found.children)),
        missing=tuple(in_order(missing)),
        deadline_seconds=found.chain.deadline_seconds,
        created_ms=found.chain.created_ms,
        reason=closed.reason if closed is not None else None,
        payload=found.chain.payload,
    )
