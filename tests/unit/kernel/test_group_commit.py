"""Threads that do the same at about the same time share the work."""

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
"""No thread may wait for so long."""


class Turns:
    """Notes the turns of each stage. The first one of a stage waits for `go`."""

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
    """However long it would wait for others."""
    turns = Turns()
    sharing = turns.sharing(linger_seconds=FOREVER)
    for number in range(3):
        with sharing.around(number):
            pass
    assert turns.before == turns.after == [[0], [1], [2]]


def test_those_that_come_meanwhile_go_together():
    """While the first is at it; and afterwards none waits for it any more."""
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


def test_an_error_is_every_ones():
    """Each raises a copy; what is inside does not run, nor does the stage after it."""
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


def test_an_interrupted_leader_leaves_the_work_to_the_next():
    """The others are served all the same."""
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


def test_what_fails_inside_does_not_hold_up_the_others():
    """Nobody waits for a thread that is gone."""
    turns = Turns()
    sharing = turns.sharing(linger_seconds=FOREVER)
    with pytest.raises(ValueError, match="inside"), sharing.around(0):
        raise ValueError("inside")
    with sharing.around(1):
        pass
    assert turns.after == [[1]]


def test_who_is_interrupted_is_not_waited_for():
    """In `before` or in `after`: later turns wait for nobody, however long they might."""
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


def test_a_wrong_number_of_results_is_everyones_error():
    """Nobody waits for a leader that has ended so."""
    commit = GroupCommit()
    for _ in range(2):
        with pytest.raises(AssertionError, match="0 results of 1 jobs"):
            commit.run("key", 1, lambda _: [])


class MetStore(DelegatingStore):
    """The PUTs of first objects wait for each other, so that all threads are at work from then on."""

    def __init__(self, store, *, threads):
        super().__init__(store)
        self._all_here = Barrier(threads)

    def put(self, key, body, **options):
        if key.startswith("in/") and key.endswith(".0"):
            self._all_here.wait(FOREVER)
        return super().put(key, body, **options)


def test_16_threads_share_their_requests():
    """Fewer than 2 requests for each put, besides the object's own, in place of 8; each change is in the queue once."""
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
    assert queue.stats("t").counted <= ROOM_HELD, "what the publisher holds for its next puts"
