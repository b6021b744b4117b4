"""(11) The amount of data that a batch rewrites.

There are 1,000,000 objects of 2 KB in 1,000 slots, and a batch of 694 objects each minute. The store is in memory;
there is no Spark and no source. The code of packs is real (plan, withdrawal, merge, Parquet). States and manifest are
only bytes of the real size (`rewriting_packs`). The benchmark does not write initial packs that no batch changes.
Figures are the mean values for one batch.

The keys of "the last hour" are chosen at random from the changes of the last 60 batches. Before the measurement, there
are 60 batches of new objects. Each batch chooses its keys from the keys of the last hour, so the set of these keys
shrinks, to half after two hours. Therefore another case also adds new objects, as many as it changes. Both cases are
also run for more batches, with a tenth of everything (objects, slots, batch, sizes of packs). A batch of random changes
rewrites most packs, so one batch with plain files is enough.

The column "instead" has the figures of the layout before packs, which had one file or more for each slot. The code of
this layout was removed, so its figures are constants, which were measured on 2026-11-24 on the same machine (`Former`).
These figures were the reason to choose packs. Packs write fewer bytes for new keys, and for new keys together with keys
of the last hour. For keys of the last hour alone, plain files lose slightly: the former layout wrote 0.89× their bytes,
but needed 54 times their requests and twice their CPU time. Plain files also lose for random overwrites and deletes.
With deletion vectors, packs write far fewer bytes for all changes. New keys need no vectors, so there is only one row
for them.

The two layouts ran for different numbers of batches, which each row shows: in case (d), packs ran for 12 batches; in
cases (b) and (c), for 1 batch with plain files, and for 10 batches with vectors. The former layout ran for 60 batches
in these cases. Compare the CPU seconds of the two layouts, not their seconds: in the run of 2026-11-24, a batch of
packs in case (d) also took far longer, 8.0 s with 1.8 s of CPU time.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from s3notify_platform.table.packs.pack_file import PackSizes
from tests.benchmarks.figures import Figure, counted, times
from tests.benchmarks.rewriting_packs import Packs
from tests.benchmarks.rewriting_rows import HOUR, Changes, Kind, slots_of
from tests.benchmarks.rewriting_store import Spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The size of the table, and the changes of a batch."""

    objects: int = 1_000_000
    slots: int = 1_000
    batch: int = 694
    sizes: PackSizes = field(default_factory=PackSizes)

    @property
    def tenth(self) -> "Scale":
        sizes = self.sizes
        small = replace(
            sizes, target=sizes.target // 10, smallest=sizes.smallest // 10, group=sizes.group // 10
        )
        return replace(
            self, objects=self.objects // 10, slots=self.slots // 10, batch=self.batch // 10, sizes=small
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """The mean costs of a batch in the former layout. `batches`: the number of batches that were measured."""

    batches: int
    written_mb: float
    read_mb: float
    gets: int
    puts: int
    seconds: float
    cpu: float
    files: int

    def __str__(self) -> str:
        requests = counted({"GET": self.gets, "PUT": self.puts})
        return (
            f"files by slot, 2026-11-24, {self.batches} batches: {self.written_mb} MB written, {self.read_mb} MB read, "
            f"{requests}, {self.seconds} s (CPU {self.cpu} s), {self.files:,} files live"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`rounds`: the number of rounds with plain files, and the number of rounds with deletion vectors. 0 means no
    rounds.
    """

    what: str
    kind: Kind
    rounds: tuple[int, int]
    former: Former
    tenth: bool = False


CASES = (
    Case(
        what="(a) new keys",
        kind="new",
        rounds=(300, 0),
        former=Former(
            batches=300,
            written_mb=41.2,
            read_mb=54.4,
            gets=1534,
            puts=1025,
            seconds=18.0,
            cpu=7.6,
            files=2000,
        ),
    ),
    Case(
        what="(d) overwrites of the last hour's keys",
        kind="hour",
        rounds=(12, 12),
        former=Former(
            batches=60, written_mb=19.7, read_mb=19.7, gets=1077, puts=1077, seconds=13.3, cpu=3.3, files=2000
        ),
    ),
    Case(
        what="(b) random overwrites",
        kind="overwrites",
        rounds=(1, 10),
        former=Former(
            batches=60,
            written_mb=260.2,
            read_mb=272.6,
            gets=1402,
            puts=937,
            seconds=54.4,
            cpu=12.2,
            files=1000,
        ),
    ),
    Case(
        what="(c) random deletes",
        kind="deletes",
        rounds=(1, 10),
        former=Former(
            batches=60,
            written_mb=261.2,
            read_mb=274.4,
            gets=1450,
            puts=967,
            seconds=41.0,
            cpu=11.7,
            files=1000,
        ),
    ),
    Case(
        what="(d) on a tenth, for five hours",
        kind="hour",
        rounds=(300, 0),
        former=Former(
            batches=300, written_mb=1.7, read_mb=1.7, gets=97, puts=97, seconds=0.7, cpu=0.3, files=200
        ),
        tenth=True,
    ),
    Case(
        what="half new keys, half overwrites of the last hour's, on a tenth",
        kind="half",
        rounds=(120, 0),
        former=Former(
            batches=300, written_mb=3.6, read_mb=4.4, gets=131, puts=100, seconds=2.5, cpu=0.6, files=200
        ),
        tenth=True,
    ),
)


def run(_folder: Path, *, small: bool) -> list[Figure]:
    whole = Scale(objects=20_000, slots=100, batch=69) if small else Scale()
    found: list[Figure] = []
    filled: dict[Scale, Packs] = {}
    for case in CASES:
        scale = whole.tenth if case.tenth else whole
        rounds = tuple(min(n, 5) for n in case.rounds) if small else case.rounds
        table = filled.get(scale) or _packs(scale)
        if case.kind in ("overwrites", "deletes") and scale not in filled:
            table.fill()
            filled[scale] = table
        for count, vectors in zip(rounds, (False, True), strict=True):
            if count:
                spent = _spent(table.fork(vectors=vectors), case.kind, scale, count)
                found.append(_figure(case, spent, vectors=vectors))
                print(" | ".join(found[-1].cells()), flush=True)
    return found


def _packs(scale: Scale) -> Packs:
    most = max(max(case.rounds) for case in CASES) + HOUR
    slots = slots_of(scale.objects + scale.batch * most, scale.slots)
    return Packs(slots=slots, total=scale.objects, sizes=scale.sizes)


def _spent(table: Packs, kind: Kind, scale: Scale, rounds: int) -> Spent:
    changes = Changes(kind=kind, total=scale.objects, batch=scale.batch)
    for _ in range(HOUR if kind in ("hour", "half") else 0):
        table.round(*changes.next(first=True))
    table.spent = Spent()
    for _ in range(rounds):
        table.round(*changes.next())
    return table.spent


def _figure(case: Case, spent: Spent, *, vectors: bool) -> Figure:
    files = "`overwrites: vectors`" if vectors else "plain files"
    mean = lambda value: value / spent.rounds
    requests = {kind: round(mean(n)) for kind, n in spent.requests.items()}
    former = case.former
    by_bytes = times(former.written_mb * 1e6, mean(spent.written))
    by_requests = times(former.gets + former.puts, sum(requests.values()))
    return Figure(
        what=f"{case.what}, {files}, {spent.rounds} batches",
        ours=f"{mean(spent.written) / 1e6:,.1f} MB written, {mean(spent.read) / 1e6:,.1f} MB read, "
        f"{counted(requests)}, {mean(spent.seconds):,.1f} s (CPU {mean(spent.cpu):,.1f} s), {spent.live:,} files live",
        instead=str(former),
        ratio=f"{by_bytes} bytes, {by_requests} requests",
    )
