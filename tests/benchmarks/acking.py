"""(5) Stamps on one ack chain. The platform's stamps, which do not contend, are compared with compare-and-set on the
same server.

Stampers are separate processes. Each stamper gets the chain, as Spark's tasks do, and one child to stamp. All requests
of the stampers are counted, including requests that resolve an outcome, and requests that close the chain. For
comparison, stampers also change one record by compare-and-set.

After that, one process uses the table of the npm package xor-ack-dynamodb in two ways: the platform's way, which
combines stamps, and the package's way. The npm registry no longer has the package. So a peer,
`tests/support/xor_ack_peer.js`, replaces the package, and uses the package's SDK and table. In this part, a request of
the platform is one transaction of two items, and an attempt of the peer is a read and a write.
"""

import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from s3notify_platform.kernel.slots import SLOT_COUNT
from s3notify_platform.protocols.ack_chain import AckChains, Acked, Chain, StampOutcome, new_stamp, xor
from s3notify_platform.protocols.ack_chain.shared import SharedChains
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from s3notify_platform.stores.dynamodb.xor_ack_table import XorAckTable
from s3notify_platform.stores.memory import MemoryRecordStore
from s3notify_platform.stores.open_store import open_store
from tests.benchmarks.figures import Figure, Seconds, counted, seconds, short, times
from tests.support.servers import S3Server, running_ministack
from tests.support.spark_options import ENVIRONMENT, named
from tests.support.tables import create_record_table
from tests.support.xor_ack_peer import XorAckPeer, install, make_table, running

ROUNDS = 3
AT_ONCE = 64


class Counted:
    """A record store whose calls are counted."""

    def __init__(self, store: Any) -> None:
        self.store, self.counts = store, Counter[str]()
        self._lock = threading.Lock()

    def __getattr__(self, method: str) -> Any:
        function = getattr(self.store, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.counts[method] += 1
            return function(*args, **kwargs)

        return call


def run(folder: Path, *, small: bool) -> list[Figure]:
    folder.mkdir(parents=True)
    os.environ.update(ENVIRONMENT)  # the processes read their keys from variables with these names
    install(folder / "npm")
    with running_ministack(folder) as server:
        config = make_table(server.endpoint_url)
        with closing(XorAckTable(config)) as table, running(folder / "npm", config) as peer:
            figures = [_against_the_package(table, peer, n) for n in ((1, 8) if small else (1, 8, AT_ONCE))]
        apart = [_apart(server, where, 8 if small else AT_ONCE) for where in ("bucket", "DynamoDB")]
        return [*apart, *figures, _batch()]


# Processes


def _apart(server: S3Server, where: str, at_once: int) -> Figure:
    """The result of the round with the median number of requests: the requests of each stamper, and the seconds until
    all stampers are done.

    There is no warm-up.
    """
    place: S3Config | DynamoConfig
    if where == "bucket":
        place = named(server.config(server.make_bucket()))
    else:
        place = named(server.table_config())
        create_record_table(place)
    names = [str(n) for n in range(at_once)]
    found: dict[bool, list[tuple[int, Seconds]]] = {True: [], False: []}
    for number in range(ROUNDS):
        for ours in (True, False):
            tag = f"{'ours' if ours else 'compare-and-set'} {number}"
            store, _ = _records(place)
            chain = AckChains(store).open_batch(tag, names) if ours else None
            if chain is None:
                SharedChains(store).open_batch(tag, names)
            found[ours].append(_in_processes(place, chain or tag, names))
    (our_requests, our_seconds), (their_requests, their_seconds) = (
        sorted(found[ours])[ROUNDS // 2] for ours in (True, False)
    )
    return Figure(
        what=f"{at_once} stampers of one chain at once, each a process, on a {where}: each stamp",
        ours=_each(our_seconds, our_requests, at_once),
        instead="one record by compare-and-set " + _each(their_seconds, their_requests, at_once),
        ratio=times(their_requests, our_requests) + " requests",
    )


def _in_processes(
    place: S3Config | DynamoConfig, chain: Chain | str, names: Sequence[str]
) -> tuple[int, Seconds]:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    gate, answers = context.Barrier(len(names) + 1), context.SimpleQueue()
    processes = [context.Process(target=_stamper, args=(place, chain, name, gate, answers)) for name in names]
    for process in processes:
        process.start()
    gate.wait()
    with seconds() as took:
        found = [answers.get() for _ in names]
    for process in processes:
        process.join()
    assert [acked for acked, _ in found].count(True) == 1
    return sum(requests for _, requests in found), took()


def _stamper(place: S3Config | DynamoConfig, chain: Chain | str, name: str, gate: Any, answers: Any) -> None:
    """The work of one process: connects, waits for the other processes, and stamps its child."""
    records, counts = _records(place)
    records.read("ack", "none")
    counts.clear()
    gate.wait()
    if isinstance(chain, Chain):
        outcome = AckChains(records).stamp_children(chain, [name])
    else:
        outcome = SharedChains(records).stamp_children(chain, [name])
    answers.put((outcome == Acked(), counts.total()))


def _records(place: S3Config | DynamoConfig) -> tuple[Any, Counter[str]]:
    """A record store in this bucket or table, and a counter of the store's requests."""
    if isinstance(place, S3Config):
        objects = CountingStore(open_store(place))
        return ObjectRecordStore(objects, "records/"), objects.counts
    store = Counted(DynamoRecordStore(place))
    return store, store.counts


# The npm package's table


def _against_the_package(table: XorAckTable, peer: XorAckPeer, at_once: int) -> Figure:
    """Seconds for all stampers, and requests of each stamper, in the round with the median duration."""
    store = Counted(table)
    ours, theirs = [], []
    for number in range(ROUNDS + 1):  # the first call opens connections
        stamps = [new_stamp() for _ in range(at_once)]
        chains = SharedChains(store)
        chains.create(f"ours {at_once} {number}", xor(*stamps, bytes(16)))
        store.counts.clear()
        calls = [
            partial(chains.stamp, f"ours {at_once} {number}", stamp, operation_id=stamp.hex())
            for stamp in stamps
        ]
        took = _together(calls)
        ours.append((took, store.counts.total()))
        peer.create(f"theirs {at_once} {number}", xor(*stamps, bytes(16)))
        with seconds() as spent:
            found = peer.stamp_all(f"theirs {at_once} {number}", stamps)
        assert found["acked"] == 1
        before = (0.0, 0.0)
        taken = Seconds.taken(found["seconds"], before, (spent().cpu, spent().server))
        theirs.append((taken, 2 * found["attempts"]))
    (our_seconds, our_requests), (their_seconds, their_requests) = (
        sorted(x[1:])[ROUNDS // 2] for x in (ours, theirs)
    )
    return Figure(
        what=f"{at_once} stampers of one chain at once, in one process: each stamp",
        ours=_each(our_seconds, our_requests, at_once),
        instead="npm package's way " + _each(their_seconds, their_requests, at_once),
        ratio=times(their_seconds, our_seconds),
    )


def _together(calls: Sequence[Callable[[], StampOutcome]]) -> Seconds:
    """Seconds until all calls are done. The calls begin at the same time, and exactly one call gets `Acked`."""
    gate = threading.Barrier(len(calls) + 1)

    def work(call: Callable[[], StampOutcome]) -> StampOutcome:
        gate.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        tasks = [pool.submit(work, call) for call in calls]
        gate.wait()
        with seconds() as took:
            outcomes = [task.result() for task in tasks]
    assert outcomes.count(Acked()) == 1
    return took()


def _batch() -> Figure:
    """The cost of a batch's ack chain, if the batch has four runs. The cost begins with the tick that opens the chain,
    and ends with the tick that finds the chain acked.
    """
    store = Counted(MemoryRecordStore())
    chains = AckChains(store)
    slots = [str(slot) for slot in range(SLOT_COUNT)]
    chains.open_batch("batch", slots)
    for part in range(4):
        chains.stamp_children("batch", slots[part::4], f"run {part}")
    assert chains.state("batch").status == "acked"
    return Figure(
        what=f"chain of a batch of {SLOT_COUNT} slots in 4 runs, opened, stamped and found done",
        ours=f"{store.counts.total()} requests ({counted(store.counts)})",
        instead=f"npm package's way, a stamp a slot: {1 + 2 * SLOT_COUNT} requests uncontended",
        ratio=times(1 + 2 * SLOT_COUNT, store.counts.total()),
    )


def _each(took: Seconds, requests: int, stamps: int) -> str:
    return f"{short(took.each(stamps))}, {requests / stamps:.2f} requests"
