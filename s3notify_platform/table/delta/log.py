"""Reads the Delta log of a table, and writes its versions and checkpoints. `view` decides their contents."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from s3notify_platform.errors import CorruptError, UnavailableError
from s3notify_platform.parallel import in_parallel
from s3notify_platform.ports import ObjectMeta, ObjectStore, StoredObject, Written, list_all
from s3notify_platform.slots import Slot
from s3notify_platform.table.delta.format import (
    Json,
    LogState,
    Summary,
    decode_checkpoint,
    encode_checkpoint,
    load_version,
    slot_of_app,
    slot_of_path,
)
from s3notify_platform.table.layout import Generation, TableLayout

REQUESTS_IN_FLIGHT: Final = 16

NO_VERSION: Final = -1

_VERSION: Final = re.compile(r".*/(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r".*/(\d{20})\.checkpoint\.parquet")
_OF_A_VERSION: Final = re.compile(r".*/(\d{20})\.[^/]+")

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogView:
    """The log at its last version. `summary` is None if another program wrote that; `state` is there if replayed."""

    version: int = NO_VERSION
    checkpoint: int | None = None
    summary: Summary | None = None
    generations: Mapping[Slot, Generation] = field(default_factory=dict)
    state: LogState | None = None

    @property
    def foreign(self) -> bool:
        """Whether another program wrote the last version."""
        return self.version != NO_VERSION and self.summary is None


class DeltaLog:
    """The log of one table. `parallelism`: requests at once."""

    def __init__(
        self, store: ObjectStore, layout: TableLayout, *, parallelism: int = REQUESTS_IN_FLIGHT
    ) -> None:
        self._store = store
        self._layout = layout
        self._parallelism = parallelism

    def read(self, *, replay: bool = False) -> LogView:
        """The last version, and which generation of each slot it shows; empty if there is no log.

        2 GETs and 1 LIST. With `replay`, and if another program wrote the last version: 1 GET of the checkpoint, and 1
        of each version since. `CorruptError` if something is missing.
        """
        hint = self._hint()
        last = self._last_version(hint)
        if last is None:
            if hint is not None:
                raise self.damaged("has a checkpoint and no version")
            return LogView()
        summary = Summary.of(self._version(last))
        state = self.replayed(last, hint) if replay or summary is None else None
        return LogView(
            version=last,
            checkpoint=hint,
            summary=summary,
            generations=summary.generations if summary else _generations(state),
            state=state,
        )

    def replayed(self, last: int, hint: int | None) -> LogState:
        """The state of the table at version `last`, replayed from the log."""
        start, state = self._base(last, hint)
        for actions in self.each(self._version, range(start + 1, last + 1)):
            state.apply(actions)
        if state.metadata is None or state.protocol is None:
            raise self.damaged("has no metaData")
        return state

    def files_by_slot(self, state: LogState) -> dict[Slot, dict[str, int]]:
        """The live files: path and bytes. `CorruptError` if another program wrote something that cannot be undone."""
        found: dict[Slot, dict[str, int]] = {}
        for path, add in state.files.items():
            slot = slot_of_path(path)
            if slot is None or add.get("deletionVector"):
                raise self.damaged(f"was changed by another program, which wrote {path!r}")
            found.setdefault(slot, {})[path] = add.get("size", 0)
        return found

    def checkpoint(self, view: LogView) -> None:
        """Write the checkpoint of a version. Replays the log, and 2 PUTs."""
        body, size = encode_checkpoint(view.state or self.replayed(view.version, view.checkpoint))
        self._put(self._layout.log_checkpoint(view.version), body)
        # An older hint may be written last: readers look for newer versions from there.
        self._put(self._layout.log_hint, json.dumps({"version": view.version, "size": size}).encode())

    def expired(self, oldest_ms: float) -> Iterator[ObjectMeta]:
        """Objects of the log that no reader of a version younger than `oldest_ms` needs. LISTs.

        Oldest first: all before the newest checkpoint of that age. The log can be read from that checkpoint on.
        """
        metas = list(list_all(self._store, self._layout.log))
        old = [meta for meta in metas if meta.modified_ms < oldest_ms]
        bases = [int(match[1]) for meta in old if (match := _CHECKPOINT.fullmatch(meta.key))]
        for meta in old if bases else ():
            match = _OF_A_VERSION.fullmatch(meta.key)
            if match and int(match[1]) < max(bases):
                yield meta

    def damaged(self, what: str) -> CorruptError:
        """The error that says what is wrong with the log, and how to repair it."""
        return CorruptError(
            f"{self._layout.log}: {what}; remove all of it and sync all slots: the log is rebuilt"
        )

    def each(self, function: Callable[[_In], _Out], items: Iterable[_In]) -> list[_Out]:
        """`function` of each item, in order, several at a time."""
        return in_parallel(function, items, self._parallelism)

    def _hint(self) -> int | None:
        found = self._store.get(self._layout.log_hint)
        if not isinstance(found, StoredObject):
            return None
        try:
            return int(json.loads(found.body)["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise self.damaged(f"holds {found.body[:80]!r} as _last_checkpoint") from error

    def _last_version(self, hint: int | None) -> int | None:
        after = None if hint is None else f"{self._layout.log}{hint:020d}"
        metas = list_all(self._store, self._layout.log, start_after=after)
        return max((int(match[1]) for meta in metas if (match := _VERSION.fullmatch(meta.key))), default=None)

    def _version(self, version: int) -> list[Json]:
        key = self._layout.log_version(version)
        found = self._store.get(key)
        if not isinstance(found, StoredObject):
            raise self.damaged(f"lacks version {version}")
        return load_version(found.body, where=key)

    def _base(self, last: int, hint: int | None) -> tuple[int, LogState]:
        """The newest checkpoint that is one object, and its contents."""
        for version in self._checkpoints(last, hint):
            key = self._layout.log_checkpoint(version)
            if isinstance(found := self._store.get(key), StoredObject):
                return version, decode_checkpoint(found.body, where=key)
        return NO_VERSION, LogState()

    def _checkpoints(self, last: int, hint: int | None) -> Iterator[int]:
        if hint is not None:
            yield hint
        # No hint, after a crash; or the checkpoint is in several objects, or removed: use the newest one that exists.
        metas = list_all(self._store, self._layout.log)
        found = [int(match[1]) for meta in metas if (match := _CHECKPOINT.fullmatch(meta.key))]
        yield from sorted((version for version in found if version <= last), reverse=True)

    def _put(self, key: str, body: bytes) -> None:
        # Unconditional: every writer writes the same bytes.
        if not isinstance(outcome := self._store.put(key, body), Written):
            raise UnavailableError(f"{key}: {outcome}; the next sync writes it")


def _generations(state: LogState | None) -> Mapping[Slot, Generation]:
    txns = ((slot_of_app(app), txn) for app, txn in (state.txns if state else {}).items())
    return {slot: Generation(txn["version"]) for slot, txn in txns if slot is not None}
