"""The record of a chain: its fields, and their form as JSON. Pure."""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass, fields

from blake3 import blake3

from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.protocols.ack_chain.names import in_order, pack_names, unpack_names
from s3notify_platform.protocols.ack_chain.stamps import STAMP_BYTES, ChainState, Status, Tag

SHARED_OPERATION_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A decoded record."""

    identity: str
    """A random name, drawn when the chain is created. The name distinguishes two chains with the same tag."""
    stamp: bytes
    status: Status = "open"
    children: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    seed: bytes = b""
    operations: tuple[bytes, ...] = ()
    last: bytes = b""
    """Digest of the operation that was applied last."""
    deadline_seconds: float | None = None
    created_ms: int = 0
    expires_ms: int | None = None
    reason: str | None = None
    payload: str = ""


def child_stamp(seed: bytes, name: str) -> bytes:
    """The stamp of a named child: a keyed BLAKE3 hash. So the record contains a seed and names instead of stamps."""
    stamp: bytes = blake3(name.encode("utf-8"), key=seed).digest(length=STAMP_BYTES)
    return stamp


def encode(chain: Chain) -> bytes:
    """Encodes a chain as the value of its record."""
    body = {field.name: getattr(chain, field.name) for field in fields(chain)} | {
        "v": 1,
        "stamp": chain.stamp.hex(),
        "children": pack_names(chain.children),
        "missing": pack_names(chain.missing),
        "seed": chain.seed.hex(),
        "operations": b64encode(b"".join(chain.operations)).decode("ascii"),
        "last": chain.last.hex(),
    }
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def decode(key: str, value: bytes) -> Chain:
    """Decodes a chain; raises `CorruptError` for any other value."""
    try:
        body = json.loads(value)
        if (version := body.pop("v")) != 1 or body["status"] not in ("open", "acked", "failed"):
            raise CorruptError(f"ack chain {key!r}: version {version}, status {body['status']}")
        operations = b64decode(body["operations"], validate=True)
        starts = range(0, len(operations), SHARED_OPERATION_BYTES)
        return Chain(
            **body
            | {
                "stamp": bytes.fromhex(body["stamp"]),
                "children": unpack_names(body["children"]),
                "missing": unpack_names(body["missing"]),
                "seed": bytes.fromhex(body["seed"]),
                "operations": tuple(operations[start : start + SHARED_OPERATION_BYTES] for start in starts),
                "last": bytes.fromhex(body["last"]),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"ack chain {key!r} has an unreadable record: {value[:80]!r}") from error


def facts(tag: str, chain: Chain) -> ChainState:
    """The state of a chain, as returned to callers."""
    return ChainState(
        tag=Tag(tag),
        status=chain.status,
        children=tuple(in_order(chain.children)),
        missing=tuple(in_order(chain.missing)),
        deadline_seconds=chain.deadline_seconds,
        created_ms=chain.created_ms,
        reason=chain.reason,
        payload=chain.payload,
    )
