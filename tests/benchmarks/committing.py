"""(5) The cost of a commit that only one writer can win, in three ways: by native conditions, by our leases, and by the
leases of object_store (obstore 0.8.2).

All commits run on one ministack, which has S3 and DynamoDB at one port. A proxy counts the requests, in a separate
pass. object_store never releases a lease, and waits 3 times the lease's timeout. So its row "create, delete, create" is
measured with a timeout of 2 s. The default is 20 s. The warm-ups are a HEAD by the platform, and a commit by
object_store.

The last figures are about concurrent runs of a slot asset. Each run commits one slot to the same log. No run is a real
process, or a Dagster run: all runs are threads of the benchmark that call `derive`, which commits a slot without Spark.
In one case, these threads share their cache of the log. In the other case, each thread has a cache of its own, as if
each were a process.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from operator import sub
from pathlib import Path
from statistics import median

from s3notify_platform.kernel.ports import Written
from s3notify_platform.protocols.conditional_commit import ConditionalCommit, DynamoCommit, NativeCommit
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.dynamodb.lease_table import DynamoLeases
from s3notify_platform.stores.open_store import open_store
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.benchmarks.figures import Figure, counted, cpu, seconds, short, timed, times
from tests.contracts.fault_proxy import FaultProxy
from tests.support.crate import Crate, crate_writers, install_crate
from tests.support.ingested import Place
from tests.support.many_runs import processes, run_all
from tests.support.servers import S3Server, running_ministack
from tests.support.tables import create_lease_table

WRITERS = 32
RUNS = 200
CRATE_MS = 2000
BODY = "x" * 2048


def run(folder: Path, *, small: bool) -> list[Figure]:
    count, rounds = (5, 1) if small else (100, 10)
    folder.mkdir()
    installed = install_crate(folder / "obstore")
    (folder / "ministack").mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(running_ministack(folder / "ministack"))
        config, table = server.config(server.make_bucket()), server.table_config()
        create_lease_table(table)
        native, leased, store = _ours(stack, config, table)
        crate = stack.enter_context(crate_writers(installed, config, table.table, CRATE_MS))
        pool = stack.enter_context(ThreadPoolExecutor(WRITERS))
        requests = _requests(server, installed, config, table)
        return [
            *_alone(native, leased, crate, count, requests),
            *_contended(native, leased, crate, pool, rounds),
            _recreated(leased, crate, store),
            _slot_runs(server, 10 if small else RUNS),
        ]


def _ours(
    stack: ExitStack, config: S3Config, table: DynamoConfig
) -> tuple[NativeCommit, DynamoCommit, S3ObjectStore]:
    """A native commit with the store that the platform opens, a commit by leases with the store that leases need, and
    this second store.
    """
    store = stack.enter_context(closing(S3ObjectStore(config, attempts=1, pool_size=WRITERS)))
    leases = stack.enter_context(closing(DynamoLeases(table)))
    return NativeCommit(open_store(config)), DynamoCommit(store, leases), store


def _requests(server: S3Server, installed: Path, config: S3Config, table: DynamoConfig) -> dict[str, str]:
    """The requests of one commit of each kind, by the name of the operation."""
    found = {}
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(server.endpoint_url))
        config = replace(config, endpoint_url=proxy.url)
        native, leased, store = _ours(stack, config, replace(table, endpoint_url=proxy.url))
        store.head("warm")  # the first HEAD request also checks the bucket
        crate = stack.enter_context(crate_writers(installed, config, table.table, CRATE_MS))
        for kind, commit in {
            "native": lambda: native.put_if_absent("counted/native", BODY.encode()),
            "leased": lambda: leased.put_if_absent("counted/leased", BODY.encode()),
            "crate": lambda: crate.run(_create("counted/crate")),
        }.items():
            proxy.requests.clear()
            commit()
            found[kind] = counted(Counter(proxy.requests))
    return found


def _alone(
    native: NativeCommit, leased: DynamoCommit, crate: Crate, count: int, requests: dict[str, str]
) -> list[Figure]:
    def each(kind: str, commit: ConditionalCommit) -> tuple[float, str]:
        with seconds() as took:
            moments = [time.perf_counter()]
            for n in range(count):
                commit.put_if_absent(f"alone/{kind}/{n}", BODY.encode())
                moments.append(time.perf_counter())
        return median(map(sub, moments[1:], moments)), cpu(took().each(count))

    crate.run(_create("alone/warm"))
    (by_native, ours), (by_leases, through) = each("native", native), each("leases", leased)
    with seconds() as took:
        by_crate = median(crate.run(_create(f"alone/crate/{n}"))[0].seconds for n in range(count))
    theirs = cpu(took().each(count))
    return [
        Figure(
            what=f"one commit of 2 KB, nobody else there (median of {count})",
            ours=f"native {short(by_native)}, {ours}, {requests['native']}",
            instead=f"object_store, DynamoDB {short(by_crate)}, {theirs}, {requests['crate']}",
            ratio=times(by_crate, by_native),
        ),
        Figure(
            what="the same, through DynamoDB",
            ours=f"{short(by_leases)}, {through}, {requests['leased']}",
            instead=f"object_store {short(by_crate)}, {theirs}, {requests['crate']}",
            ratio=times(by_crate, by_leases),
        ),
    ]


def _contended(
    native: NativeCommit, leased: DynamoCommit, crate: Crate, pool: ThreadPoolExecutor, rounds: int
) -> list[Figure]:
    def theirs(path: str) -> float:
        said = crate.run(*[_create(path)] * WRITERS)
        assert [one.said for one in said].count("won") == 1
        return max(one.seconds for one in said)

    def each(kind: str, race: Callable[[str], float]) -> tuple[float, str]:
        with seconds() as took:
            found = [race(f"race/{kind}/{n}") for n in range(rounds)]
        return median(found), f"{short(median(found))}, {short(max(found))}, {cpu(took().each(rounds))}"

    by_crate, instead = each("crate", theirs)
    what = f"{WRITERS} writers of one path: one has won, all others know (median of {rounds}, slowest)"
    return [
        Figure(
            what=f"{what}, {kind}",
            ours=text,
            instead=f"object_store {instead}",
            ratio=times(by_crate, ours),
        )
        for kind, (ours, text) in {
            "native": each("native", lambda path: _race(native, pool, path)),
            "DynamoDB": each("leases", lambda path: _race(leased, pool, path)),
        }.items()
    ]


def _race(commit: ConditionalCommit, pool: ThreadPoolExecutor, path: str) -> float:
    start = threading.Barrier(WRITERS + 1)

    def write(number: int) -> bool:
        start.wait()
        return isinstance(commit.put_if_absent(path, f"{number} {BODY}".encode()), Written)

    running = [pool.submit(write, number) for number in range(WRITERS)]
    start.wait()
    began = time.perf_counter()
    assert [future.result() for future in running].count(True) == 1
    return time.perf_counter() - began


def _recreated(leased: DynamoCommit, crate: Crate, store: S3ObjectStore) -> Figure:
    def ours() -> None:
        for body in (b"1", b"2"):
            made = leased.put_if_absent("again/ours", body)
            assert isinstance(made, Written)
            if body == b"1":
                assert made.etag
                leased.delete_if_match("again/ours", made.etag)

    def theirs() -> None:
        for task in (_create("again"), {"do": "delete", "path": "again"}, _create("again")):
            (said,) = crate.run(task)
            assert said.said == "won", said

    (by_leases, _), (by_crate, _) = timed(ours), timed(theirs)
    assert store.head("again") is not None
    return Figure(
        what="create, delete, create on one path",
        ours=f"{short(by_leases)} (lease 20 s)",
        instead=f"object_store {short(by_crate)} (lease {CRATE_MS / 1000:.0f} s; by default 20 s)",
        ratio=times(by_crate, by_leases),
    )


def _slot_runs(server: S3Server, runs: int) -> Figure:
    shared, together = run_all(Place(server, slots=runs))
    with processes() as begin:
        alone, apart = run_all(Place(server, slots=runs), begin)
    return Figure(
        what=f"{runs} runs at once, as threads, each of one slot of a slot asset, until the last is committed",
        ours=f"one shared cache {short(together)}, {shared.version} versions",
        instead=f"ours, a cache each, as if each were a process {short(apart)}, {alone.version} versions",
        ratio=times(apart, together),
    )


def _create(path: str) -> dict[str, str]:
    return {"do": "create", "path": path, "body": BODY}
