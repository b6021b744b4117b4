"""Concurrent threads that do the same kind of work share its requests."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread

import pytest

from s3notify_platform.channels.publish.queued_publisher import QueuedPublisher
from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.group_commit import GroupCommit, Sharing
from s3notify_platform.kernel.limits import ROOM_HELD
from s3notify_platform.kernel.ports import Written
from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.notification_queue import NotificationQueue, TopicSettings, keys_recur
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.delegating import DelegatingStore
from s3notify_platform.stores.memory import MemoryObjectStore

FOREVER = 600.0
"""No thread may wait for this long."""


class Turns:
    """Records the turns of each stage. The first turn of each stage waits for `go`."""

    def __init__(self, *, go=None):
        self.before, self.after = [], []
        self.go = go

    def note(self, turns, items):
        turns.append(sorted(items))
        if self.go is not None and len(turns) == 1:
            self.go.wait()

    def sharing(self, **settings):
        return Sharing(
            lambda items: self.note(self.before, items),
            lambda items: self.note(self.after, items),
            **settings,
        )


def test_a_single_thread_does_not_wait():
    """Otherwise a single writer would wait for `linger_seconds` at each put."""
    turns = Turns()
    sharing = turns.sharing(linger_seconds=FOREVER)
    for number in range(3):
        with sharing.around(number):
            pass
    assert turns.before == turns.after == [[0], [1], [2]]


def test_threads_that_arrive_during_a_turn_share_the_next_turn():
    """Otherwise each thread that arrives during a turn would send its own request, or wait for a thread that has
    finished.
    """
    go, came = Event(), []
    turns = Turns(go=go)
    sharing = turns.sharing(linger_seconds=0.0)

    def call(number):
        came.append(number)
        with sharing.around(number):
            pass

    threads = [Thread(target=call, args=(number,)) for number in range(6)]
    threads[0].start()
    while not turns.before:
        pass
    for thread in threads[1:]:
        thread.start()
    while len(sharing._commits._groups["before"].waiting) < 5:
        pass
    go.set()
    for thread in threads:
        thread.join()
    assert turns.before == [[0], [1, 2, 3, 4, 5]]
    assert sorted(number for turn in turns.after for number in turn) == list(range(6))


def test_an_error_of_a_stage_is_raised_in_each_thread():
    """Otherwise a thread would continue although its work was not sent, or share a traceback with other threads."""
    go, after = Event(), []

    def fail(_items):
        go.wait()
        raise UnavailableError("503")

    sharing = Sharing(fail, after.extend, linger_seconds=0.0)
    inside = []

    def call(number):
        with sharing.around(number):
            inside.append(number)

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call, number) for number in range(4)]
        go.set()
        errors = [call.exception() for call in calls]
    assert [str(error) for error in errors] == ["503"] * 4
    assert len({id(error) for error in errors}) == 4
    assert inside == after == []


def test_an_interrupted_leader_leaves_its_work_to_the_next_leader():
    """Otherwise Ctrl-C in one thread would leave other threads waiting for ever."""
    go, interrupted = Event(), []

    def work(items):
        if not interrupted:
            interrupted.append(items)
            go.wait()
            raise KeyboardInterrupt
        served.extend(items)

    served = []
    sharing = Sharing(work, lambda _: None, linger_seconds=0.0)

    def call(number):
        try:
            with sharing.around(number):
                pass
        except KeyboardInterrupt:
            served.append("interrupted")

    first = Thread(target=call, args=(0,))
    first.start()
    while not interrupted:
        pass
    others = [Thread(target=call, args=(number,)) for number in (1, 2)]
    for thread in others:
        thread.start()
    while len(sharing._commits._groups["before"].waiting) < 2:
        pass
    go.set()
    for thread in (first, *others):
        thread.join()
    assert sorted(map(str, served)) == ["1", "2", "interrupted"]


def test_an_error_between_the_two_stages_does_not_delay_other_threads():
    """Otherwise other threads would wait for a thread that has already failed."""
    turns = Turns()
    sharing = turns.sharing(linger_seconds=FOREVER)
    with pytest.raises(ValueError, match="inside"), sharing.around(0):
        raise ValueError("inside")
    with sharing.around(1):
        pass
    assert turns.after == [[1]]


def test_other_threads_do_not_wait_for_an_interrupted_thread():
    """Otherwise, after Ctrl-C in the first or the second stage, later turns would wait for `linger_seconds`."""
    interrupted = []

    def once(items):
        if not interrupted:
            interrupted.append(items)
            raise KeyboardInterrupt

    for stages in ((once, lambda _: None), (lambda _: None, once)):
        interrupted.clear()
        sharing = Sharing(*stages, linger_seconds=FOREVER)
        with pytest.raises(KeyboardInterrupt), sharing.around(0):
            pass
        for number in (1, 2):
            with sharing.around(number):
                pass
        assert sharing._between == sharing._inside == set()


def test_a_wrong_number_of_results_is_an_error_of_every_job():
    """Otherwise later jobs would wait for a leader that has ended."""
    commit = GroupCommit()
    for _ in range(2):
        with pytest.raises(AssertionError, match="0 results of 1 jobs"):
            commit.run("key", 1, lambda _: [])


class MetStore(DelegatingStore):
    """A store in which each thread's first PUT waits for the first PUTs of all other threads. So all threads work at
    the same time.
    """

    def __init__(self, store, *, threads):
        super().__init__(store)
        self._all_here = Barrier(threads)

    def put(self, key, body, **options):
        if key.startswith("in/") and key.endswith(".0"):
            self._all_here.wait(FOREVER)
        return super().put(key, body, **options)


def test_16_threads_share_their_requests():
    """Otherwise each put of 16 threads would cost 2 or more requests besides the object's own PUT, or a change would be
    queued twice.
    """
    puts, threads = 20, 16
    store = CountingStore(MetStore(MemoryObjectStore(), threads=threads))
    queue = NotificationQueue(ObjectRecordStore(store, "q/", keys_recur=keys_recur))
    queue.topics.create("t", TopicSettings(bucket="b"))
    publisher = QueuedPublisher(Publisher(store, prefix="ks/"), queue, bucket="b", linger_seconds=1.0)
    store.counts.clear()

    def write(thread):
        return [publisher.put(f"in/{thread}.{number}", b"x") for number in range(puts)]

    with ThreadPoolExecutor(threads) as pool:
        outcomes = [outcome for part in pool.map(write, range(threads)) for outcome in part]
    requests, total = sum(store.counts.values()), puts * threads
    assert all(isinstance(outcome, Written) for outcome in outcomes)
    assert (requests - total) / total < 2
    entries = queue.entries("t", range(1000))
    assert len({entry.event.key for entry in entries}) == total
    assert queue.remove(entries) == total
    assert queue.stats("t").counted <= ROOM_HELD, "the publisher holds this room for its next puts"
