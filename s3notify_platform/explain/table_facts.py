"""The numbers of a source's table in one snapshot. `status` and the asset `{source}_summary` show the same numbers."""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from s3notify_platform.explain.slot_map import SlotMap
from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.kernel.slots import Slot
from s3notify_platform.source.source import Source
from s3notify_platform.table.manifest import SlotFacts
from s3notify_platform.table.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """Counts of a table's slots that have to be made again. `stale`: slots whose rows another version of the code made.
    `behind`: slots of a slot asset that lack the newest rows of the source, because a run failed or has not ended yet.
    """

    stale: int = 0
    behind: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """The numbers of one snapshot. `version`: -1 without a table. `files`, `bytes`: the number and the size of the
    files with rows and rejects.

    `slots`: the slots that a batch has committed, with the facts of each slot.
    """

    version: int
    files: int
    bytes: int
    slots: Mapping[Slot, SlotFacts]

    @classmethod
    def of(cls, snapshot: Snapshot | None) -> Self:
        """The numbers of a snapshot, or zeros if there is no snapshot. Pure."""
        if snapshot is None:
            return cls(version=-1, files=0, bytes=0, slots={})
        packs = [*snapshot.packs.values(), *snapshot.manifest.rejects]
        return cls(
            version=snapshot.version,
            files=len(packs),
            bytes=sum(pack.size for pack in packs),
            slots={slot: facts for slot, facts in snapshot.manifest.slots.items() if facts.generation},
        )

    @property
    def generations(self) -> set[int]:
        """The versions that last changed a slot."""
        return {facts.generation for facts in self.slots.values()}

    def total(self, number: Callable[[SlotFacts], int]) -> int:
        """Adds up `number` over all slots."""
        return sum(map(number, self.slots.values()))

    def outdated(self, source: Source, codes: Mapping[str, str]) -> dict[str, Outdated]:
        """The number of slots that have to be made again, by the name of the table: the source's table, or the table of
        a slot asset.

        `codes`: the code versions of the source and of its slot assets. A table that cannot be read is left out,
        because an error of a slot asset is not an error of the source. Each slot asset costs the requests of
        `LogTable.newest`.
        """
        found: dict[str, Outdated] = {}
        for name, code in codes.items():
            if name == source.name:
                found[name] = Outdated(stale=sum(facts.is_stale(code) for facts in self.slots.values()))
                continue
            with suppress(S3NotifyError):
                table = source.location.table(name).newest()
                made = table.manifest.slots if isinstance(table, Snapshot) else {}
                found[name] = Outdated(
                    stale=sum(facts.is_stale(code) for facts in made.values()) if code else 0,
                    behind=sum(
                        slot not in made or made[slot].source < facts.generation
                        for slot, facts in self.slots.items()
                    ),
                )
        return found

    def map(
        self,
        slots: int,
        created_ms: Mapping[int, int],
        now_ms: int,
        *,
        in_flight: Collection[Slot],
        failing: Iterable[int],
    ) -> SlotMap:
        """The map of all slots. `created_ms`: the creation times of `generations`. Pure.

        `failing`: the slots whose last batch did not commit them. Numbers that are not slots of the source are left
        out. A slot with objects in quarantine is not failing, because the other objects of the slot are committed.
        """
        return SlotMap(
            slots=slots,
            ages={
                slot: max(0, now_ms - created_ms[facts.generation]) / 1000
                for slot, facts in self.slots.items()
            },
            rows={slot: facts.rows for slot, facts in self.slots.items()},
            quarantined={slot: facts.rejects + facts.failing for slot, facts in self.slots.items()},
            in_flight=in_flight,
            failing={Slot(slot) for slot in failing if 0 <= slot < slots},
        )
