"""Crashes, lost answers, and syncs at once."""

from pathlib import Path
from typing import Any

import pytest

from s3notify_platform.errors import ConflictError, FencedError, UnknownOutcomeError
from s3notify_platform.ports import Conflict, Written
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.slots import Slot
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.table.delta.view import DeltaView, Synced
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at
from tests.support.viewed import LAYOUT, Viewed
from tests.unit.table.delta.helpers import SLOTS, ids, over, same


class TestRaces:
    def test_crash_after_the_version_was_written(self, viewed: Viewed, tmp_path: Path) -> None:
        """The next sync finds it shown; nothing is added twice."""
        store = FaultyStore(viewed.store, at("put", Fault.CRASH_AFTER))
        with pytest.raises(CrashedError):
            over(viewed, store).view.sync(SLOTS)
        assert viewed.view.sync(SLOTS) == Synced(version=0, rows=3)
        same(viewed, tmp_path)

    def test_a_lost_response_is_found_to_be_ones_own(self, viewed: Viewed) -> None:
        """As the commit layer does: one version, and no race lost."""
        store = FaultyStore(viewed.store, at("put", Fault.LOST))
        assert over(viewed, store).view.sync(SLOTS).lost_races == 0
        assert viewed.view.generations() == {1: 1, 2: 1}

    @pytest.mark.parametrize("applied", [True, False])
    def test_what_the_commit_layer_cannot_find_out(self, viewed: Viewed, applied: bool) -> None:
        """The log itself decides: shown or not, the sync goes on from there."""

        class Doubtful(NativeCommit):
            doubts = 1

            def put_if_absent(self, path: str, body: bytes, **more: Any) -> Any:
                self.doubts -= 1
                if self.doubts < 0 or applied:
                    found = super().put_if_absent(path, body, **more)
                if self.doubts >= 0:
                    raise UnknownOutcomeError("lost")
                return found

        commits = Doubtful(viewed.store, clock=viewed.clock)
        view = DeltaView(viewed.table, viewed.schemas, commits, name="orders", clock=viewed.clock)
        assert view.sync(SLOTS).version == 0
        assert view.generations() == {1: 1, 2: 1}

    def test_two_syncs_at_once(self, viewed: Viewed, tmp_path: Path) -> None:
        """The one that loses goes on with what is left; no slot is taken back, none shown twice."""
        other = over(viewed, viewed.store)

        class Interrupted(MemoryObjectStore):
            """Another sync comes between what is read and what is written."""

            def put(self, key: str, body: bytes, **more: Any) -> Any:
                if key == LAYOUT.log_version(0):
                    other.append(1, ids(10))
                    other.view.sync([Slot(1)])
                return viewed.store.put(key, body, **more)

            def __getattribute__(self, name: str) -> Any:
                return object.__getattribute__(self, name) if name == "put" else getattr(viewed.store, name)

        synced = over(viewed, Interrupted()).view.sync(SLOTS)
        assert (synced.version, synced.lost_races, synced.slots) == (1, 1, 1)
        assert viewed.view.generations() == {1: 2, 2: 1}
        same(viewed, tmp_path)

    def test_who_always_loses_ends(self, viewed: Viewed) -> None:
        """Bounded, and says to try again."""

        class Losing:
            def __getattr__(self, name: str) -> Any:
                return getattr(viewed.store, name)

            def put(self, key: str, body: bytes, **more: Any) -> Written | Conflict:
                assert more["precondition"] is not None
                return Conflict()

        with pytest.raises(ConflictError, match="other syncs were first"):
            over(viewed, Losing()).view.sync(SLOTS)

    def test_who_took_too_long_shows_nothing(self, viewed: Viewed, clock: HandClock) -> None:
        """Vacuum may have taken the files of heads that were read so long ago."""

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(viewed.store, name)

            def list(self, *args: Any, **more: Any) -> Any:
                clock.now += viewed.table.max_run_seconds
                return viewed.store.list(*args, **more)

        with pytest.raises(FencedError, match="sync again"):
            over(viewed, Slow()).view.sync(SLOTS)
        assert viewed.log_objects() == {}
