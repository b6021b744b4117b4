"""The record of a chain: its fields, and their form as JSON. Pure."""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import groupby

from s3notify_platform.errors import CorruptError
from s3notify_platform.protocols.ack_chain.stamps import ChainState, Status, Tag, in_order, is_number

OPERATION_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A record, decoded."""

    identity: str
    """Random, drawn when the chain is created: distinguishes two chains with one tag."""
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


def pack_names(names: Iterable[str]) -> list[object]:
    """Names as compact JSON: 7 for "7", [3, 5] for "3" to "5", ["7", 0, [2, 9]] for "7/0" and "7/2" to "7/9".

    Other names stay as they are.
    """
    ordered = in_order(names)
    numbers = [int(name) for name in ordered if is_number(name)]
    packed = _runs(numbers)
    below: dict[str, list[int]] = {}
    for name in ordered[len(numbers) :]:
        parent, slash, last = name.rpartition("/")
        if slash and is_number(last):
            below.setdefault(parent, []).append(int(last))
        else:
            packed.append(name)
    for parent, found in below.items():
        packed.append([parent, *_runs(sorted(found))] if len(found) > 1 else f"{parent}/{found[0]}")
    return packed


def _runs(numbers: Sequence[int]) -> list[object]:
    packed: list[object] = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        found = [number for _, number in run]
        packed.append(found[0] if len(found) == 1 else [found[0], found[-1]])
    return packed


def unpack_names(packed: Iterable[object]) -> frozenset[str]:
    """The names that `pack_names` packed."""
    names: set[str] = set()
    for item in packed:
        match item:
            case str():
                names.add(item)
            case [str(parent), *runs]:
                names.update(f"{parent}/{number}" for number in _numbers(runs))
            case _:
                names.update(map(str, _numbers([item])))
    return frozenset(names)


def _numbers(runs: Iterable[object]) -> Iterator[int]:
    for run in runs:
        match run:
            case int():
                yield run
            case [int(first), int(last)]:
                yield from range(first, last + 1)
            case _:
                raise CorruptError(f"{run!r} is not a packed name")


def encode(chain: Chain) -> bytes:
    """The record's bytes."""
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
    """The chain that was encoded; `CorruptError` for anything else."""
    try:
        body = json.loads(value)
        if (version := body.pop("v")) != 1 or body["status"] not in ("open", "acked", "failed"):
            raise CorruptError(f"ack chain {key!r}: version {version}, status {body['status']}")
        operations = b64decode(body["operations"], validate=True)
        starts = range(0, len(operations), OPERATION_BYTES)
        return Chain(
            **body
            | {
                "stamp": bytes.fromhex(body["stamp"]),
                "children": unpack_names(body["children"]),
                "missing": unpack_names(body["missing"]),
                "seed": bytes.fromhex(body["seed"]),
                "operations": tuple(operations[start : start + OPERATION_BYTES] for start in starts),
                "last": bytes.fromhex(body["last"]),
            }
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptError(f"ack chain {key!r} holds {value[:80]!r}") from error


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
