"""Keeps the sensor's cursor short enough for Dagster's UI: a record of the source has the signals seen. The failing
slots are also in a record if their description is long.

A cursor contains the name of a record. The record has 8 bytes for each slot. The cursor itself lists the slots that
have changed since the record was written. If there are more than `MOVED_MAX` changed slots, a new record is written,
with the record's hash as its name. Failing slots are in a second record if they need more than `FAILING_MAX`
characters. A new record is written before Dagster stores the new cursor, and the previous record is removed later. So a
repeated tick always finds the records of its cursor. If the record of the signals is lost, all slots that were ever
signalled are looked at. If the record of the failing slots is lost, the next batch compares everything. In both cases,
no change is missed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from blake3 import blake3

from s3notify_platform.engine.batch.batches import SensorState
from s3notify_platform.kernel.errors import CorruptError
from s3notify_platform.kernel.ports import Conflict, RecordStore, Written
from s3notify_platform.protocols.keyspace import WatcherState
from s3notify_platform.protocols.keyspace.signals import DIGEST_BYTES
from s3notify_platform.protocols.source_enumerator.rescan import PARTITION

RECORD: Final = "cursor-"
"""Prefix of the record's name. The record is in the same partition of the record store as the source's other hints.
"""
MOVED_MAX: Final = 32
"""Maximum number of changed slots in the cursor itself."""

FAILING_MAX: Final = 2000
"""Maximum number of characters about failing slots in the cursor itself."""

NOTHING: Final = ""
"""The name that a cursor contains if the sensor has seen no signal. No record with this name exists.
"""


@lru_cache(maxsize=128)
def _kept(name: str) -> list[bytes]:  # noqa: ARG001 - the key of the cache
    """Returns a list, in which this process keeps the record's value. The list is empty until the value is known."""
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortCursor:
    """Reads and writes the cursor of one source. `records`: the source's record store."""

    records: RecordStore

    def loads(self, text: str) -> SensorState:
        """Returns the state. Raises `CorruptError` for an invalid text.

        Cost: 1 read for each record that this process does not know yet.
        """
        try:
            body = json.loads(text)
            watch = body["watch"]
            if isinstance(watch, dict):
                body["watch"] = self._whole(watch).dumps()
            if (name := body["failing"].get("record", NOTHING)) != NOTHING:
                if value := self._value(name):
                    body["failing"] = json.loads(value)
                else:
                    body |= {"failing": {"reasons": [], "groups": []}, "enumerated": ""}
            return SensorState.loads(json.dumps(body))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CorruptError(
                "the sensor's cursor was not written by this version: reset the cursor in the UI (nothing is lost)"
            ) from error

    def dumps(self, state: SensorState, before: str) -> str:
        """Returns the cursor of a state. `before`: the cursor that Dagster has stored, "" if there is no cursor yet.

        Cost: 1 write if more than `MOVED_MAX` slots have changed, and then 1 read and 1 removal in the next tick. The
        cost is the same if the failing slots have changed and need more than `FAILING_MAX` characters.
        """
        known, failed = _part_of(before, "watch"), _part_of(before, "failing")
        for part in (known, failed):
            self._remove(str(part.get("unused", NOTHING)))
        base, unused = str(known.get("record", NOTHING)), NOTHING
        vectors = state.watch.digests + state.watch.entries
        moved = _moved(self._value(base), vectors)
        if len(moved) > MOVED_MAX:
            name = blake3(vectors).hexdigest(length=16)
            if self._written(name, vectors):
                _kept(name)[:] = [vectors]
                base, unused, moved = name, base if name != base else NOTHING, {}
        body = json.loads(state.dumps())
        body["failing"] = self._short(body["failing"], str(failed.get("record", NOTHING)))
        body["watch"] = {
            "slots": state.watch.slots,
            "root": state.watch.root_etag,
            "listed": state.watch.listed_root,
            "record": base,
            "unused": unused,
            "entries": bool(state.watch.entries),
            "moved": moved,
        }
        return json.dumps(body)

    def _short(self, failing: dict[str, Any], record: str) -> dict[str, Any]:
        """Returns the cursor's part about failing slots. `record`: the name of the failing slots' record in the stored
        cursor.
        """
        value = json.dumps(failing).encode()
        if len(value) > FAILING_MAX:
            name = blake3(value).hexdigest(length=16)
            if name == record:
                return {"record": record}
            if self._written(name, value):
                _kept(name)[:] = [value]
                return {"record": name, "unused": record}
        return {**failing, "unused": record}

    def _remove(self, name: str) -> None:
        if name != NOTHING and (found := self.records.read(PARTITION, f"{RECORD}{name}")) is not None:
            self.records.remove(PARTITION, found.key, expected=found.version)

    def _written(self, name: str, value: bytes) -> bool:
        return isinstance(self.records.create(PARTITION, f"{RECORD}{name}", value), Written | Conflict)

    def _value(self, name: str) -> bytes:
        """Returns the value of the record `name`; b"" if the record is lost."""
        if name == NOTHING:
            return b""
        if not (kept := _kept(name)):
            found = self.records.read(PARTITION, f"{RECORD}{name}")
            if found is None:
                return b""
            kept[:] = [found.value]
        return kept[0]

    def _whole(self, watch: Mapping[str, Any]) -> WatcherState:
        size = watch["slots"] * DIGEST_BYTES * (2 if watch["entries"] else 1)
        value = self._value(watch["record"])
        vectors = bytearray(value.ljust(size, b"\0")[:size])
        for place, digest in watch["moved"].items():
            at = int(place) * DIGEST_BYTES
            vectors[at : at + DIGEST_BYTES] = bytes.fromhex(digest)
        half = watch["slots"] * DIGEST_BYTES
        state = WatcherState(
            slots=watch["slots"],
            digests=bytes(vectors[:half]),
            entries=bytes(vectors[half:]),
            root_etag=watch["root"],
            listed_root=watch["listed"],
        )
        lost = watch["record"] != NOTHING and not value
        return replace(state, root_etag=None, listed_root=None) if lost else state


def _part_of(cursor: str, name: str) -> Mapping[str, Any]:
    try:
        found = json.loads(cursor)[name]
    except (ValueError, LookupError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _moved(before: bytes, vectors: bytes) -> dict[str, str]:
    """Returns the digests in `vectors` that differ from `before`, as hexadecimal texts. The keys are the indexes of the
    digests.
    """
    padded = before.ljust(len(vectors), b"\0")
    return {
        str(at // DIGEST_BYTES): vectors[at : at + DIGEST_BYTES].hex()
        for at in range(0, len(vectors), DIGEST_BYTES)
        if vectors[at : at + DIGEST_BYTES] != padded[at : at + DIGEST_BYTES]
    }
