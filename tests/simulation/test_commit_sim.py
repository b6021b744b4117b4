"""Conditional commits under faults: exactly one writer wins each generation, and no reported outcome is wrong."""

from collections import Counter

from s3notify_platform.kernel.errors import UnavailableError, UnknownOutcomeError
from s3notify_platform.kernel.ports import Conflict, Written
from s3notify_platform.protocols.conditional_commit import NativeCommit
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.faults import Fault
from tests.support.simulation import ROUGH, run_simulation, simulated

STUMBLES = {Fault.LOST: 0.15, Fault.REFUSED: 0.1, Fault.LATE: 0.1, Fault.PAUSE: 0.02}


@simulated
def test_each_generation_has_one_winner(seed):
    """Four writers create generations 1 to 5, crash, and continue where they were. Each generation must have exactly
    one winner.
    """
    store = MemoryObjectStore()
    won, lost = {}, {}

    def writer(number):
        attempt = 0

        def run(faulty, clock):
            nonlocal attempt
            commit = NativeCommit(faulty, clock=clock)
            for generation in range(1, 6):
                attempt += 1
                name = f"{number}/{attempt}"
                try:
                    outcome = commit.put_if_absent(f"commits/{generation}", name.encode())
                except (UnavailableError, UnknownOutcomeError):
                    continue
                (won if isinstance(outcome, Written) else lost).setdefault(generation, []).append(name)

        return run

    run_simulation([writer(n) for n in range(4)], store, seed, faults=ROUGH)
    assert won
    for generation, names in won.items():
        found = store.get(f"commits/{generation}")
        assert [name.encode() for name in names] == [found.body]
    for generation, names in lost.items():
        assert store.get(f"commits/{generation}").body.decode() not in names


@simulated
def test_no_update_is_lost_or_applied_twice(seed):
    """The counter's value must be between the number of confirmed increments and the number of possible increments."""
    store = MemoryObjectStore()
    store.put("counter", b"0 start")
    committed, unknown = [], []

    def writer(number):
        def run(faulty, clock):
            commit = NativeCommit(faulty, clock=clock)
            for step in range(6):
                found = store.get("counter")
                value = int(found.body.split()[0])
                body = b"%d %d/%d" % (value + 1, number, step)  # different bodies have different ETags
                try:
                    outcome = commit.put_if_match("counter", body, found.meta.etag)
                except UnavailableError:
                    continue
                except UnknownOutcomeError:
                    unknown.append(body)
                    continue
                if outcome != Conflict():
                    committed.append(body)

        return run

    run_simulation([writer(n) for n in range(4)], store, seed, faults=STUMBLES)
    value = int(store.get("counter").body.split()[0])
    assert len(committed) <= value <= len(committed) + len(unknown)
    assert len({body.split()[0] for body in committed}) == len(committed)


@simulated
def test_one_copy_wins(seed):
    """Four writers copy from their own sources to one target. If two copies won, one of the writers would not notice
    that the target has the body of another source.
    """
    store = MemoryObjectStore()
    won, lost = [], []

    def writer(number):
        tries = 0

        def run(faulty, clock):
            nonlocal tries
            commit = NativeCommit(faulty, clock=clock)
            for _ in range(2):
                tries += 1
                body = b"%d/%d" % (number, tries)
                store.put(f"from {body}", body)
                try:
                    outcome = commit.copy_if_absent(f"from {body}", "target")
                except (UnavailableError, UnknownOutcomeError):
                    continue
                (lost if outcome == Conflict() else won).append(body)

        return run

    run_simulation([writer(n) for n in range(4)], store, seed, faults=ROUGH)
    assert len(won) <= 1
    if won or lost:
        found = store.get("target").body
        assert found not in lost
        assert won in ([], [found])


@simulated
def test_each_version_is_deleted_once(seed):
    """If two deletes of one version succeeded, one of these deletes would have removed nothing, or a newer object of
    another writer.
    """
    created, deleted = Counter(), Counter()

    class Noting(MemoryObjectStore):
        def put(self, *args, **kwargs):
            outcome = super().put(*args, **kwargs)
            if isinstance(outcome, Written):
                created[outcome.etag] += 1
            return outcome

    store = Noting()

    def writer(number):
        tries = 0

        def run(faulty, clock):
            nonlocal tries
            commit = NativeCommit(faulty, clock=clock)
            for _ in range(4):
                tries += 1
                found = store.head("path")
                try:
                    if found is None:
                        commit.put_if_absent("path", b"%d/%d" % (number, tries))
                    elif commit.delete_if_match("path", found.etag) != Conflict():
                        deleted[found.etag] += 1
                except (UnavailableError, UnknownOutcomeError):
                    continue

        return run

    run_simulation([writer(n) for n in range(4)], store, seed, faults=ROUGH)
    assert deleted <= created
