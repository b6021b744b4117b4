"""Group commit: concurrent threads of one process send their jobs together, as one request.

One thread is the leader: it takes all waiting jobs and sends them. Jobs that arrive meanwhile wait for the next leader.
There is no background thread, and a single thread never waits. If a leader is interrupted (`KeyboardInterrupt`),
another thread sends the jobs that the leader had taken. So it must be safe to send the same jobs twice.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, Final, Generic, TypeVar

LINGER_SECONDS: Final = 0.02
"""Seconds for which a thread waits for other threads. The wait is shorter than the request that it may save."""

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    job: Any
    done: bool = False
    result: Any = None


@dataclass(slots=True, kw_only=True)
class _Group:
    waiting: list[_Call] = field(default_factory=list)
    led: bool = False


class GroupCommit:
    """Sends the jobs of concurrent threads together, by key. The class is thread-safe, and keeps nothing between two
    jobs.
    """

    def __init__(self, *, linger_seconds: float = 0.0) -> None:
        """`linger_seconds`: the longest time for which a leader waits for more jobs. A leader waits only while `enough`
        is false.
        """
        self._linger_seconds = linger_seconds
        self._groups: dict[Hashable, _Group] = {}
        self.changed = Condition()
        """The condition whose lock guards the jobs. The condition must be notified when the answer of `enough` may have
        changed.
        """

    def run(
        self,
        key: Hashable,
        job: Any,
        send: Callable[[Sequence[Any]], Sequence[Any]],
        *,
        enough: Callable[[int], bool] = lambda _: True,
        entering: Callable[[], None] = lambda: None,
    ) -> Any:
        """Returns the result of `job`. This thread or another thread calls `send(jobs)`, which returns a list of
        results.

        A result that is an exception is raised. An exception that `send` raises is the result of every job.
        `enough(n)`: true if a leader with n jobs does not wait for more jobs. `entering` is called when the job is
        added to the waiting jobs.
        """
        me = _Call(job=job)
        with self.changed:
            entering()
            group = self._groups.setdefault(key, _Group())
            group.waiting.append(me)
            self.changed.notify_all()
            together = self._taken(key, group, me, enough)
        if together:
            self._lead(key, group, me, together, send)
        if not isinstance(me.result, Exception):
            return me.result
        if together:
            raise me.result
        # Threads may share the error: each thread raises its own copy, with its own traceback.
        raise copy.copy(me.result) from me.result

    def _taken(self, key: Hashable, group: _Group, me: _Call, enough: Callable[[int], bool]) -> list[_Call]:
        """Returns the calls that this thread must send. The list is empty if another thread has already sent this
        thread's call.
        """
        leads = False
        try:
            self.changed.wait_for(lambda: me.done or not group.led)
            if me.done:
                return []
            group.led = leads = True
            self.changed.wait_for(lambda: enough(len(group.waiting)), self._linger_seconds)
        except BaseException:
            group.led = group.led and not leads
            group.waiting = [call for call in group.waiting if call is not me]
            self._leave(key, group)
            raise
        together, group.waiting = group.waiting, []
        return together

    def _lead(
        self,
        key: Hashable,
        group: _Group,
        me: _Call,
        together: list[_Call],
        send: Callable[[Sequence[Any]], Sequence[Any]],
    ) -> None:
        results: Sequence[Any] | None = None
        try:
            results = send([call.job for call in together])
            if len(results) != len(together):
                raise AssertionError(f"{len(results)} results of {len(together)} jobs")
        except Exception as error:  # noqa: BLE001 - raised again by each of the threads
            results = [error] * len(together)
        finally:
            with self.changed:
                if results is None:  # interrupted
                    group.waiting = [*(call for call in together if call is not me), *group.waiting]
                else:
                    for call, result in zip(together, results, strict=True):
                        call.done, call.result = True, result
                group.led = False
                self._leave(key, group)

    def _leave(self, key: Hashable, group: _Group) -> None:
        if not group.led and not group.waiting:
            self._groups.pop(key, None)
        self.changed.notify_all()


class Sharing(Generic[T]):
    """Runs two stages around the work of each thread: `before` and `after`. Each stage is a group commit. The class is
    thread-safe.

    `before` notes the largest number of threads that were inside `around` at the same time since the last run of
    `before`, and waits for this number of threads. `after` waits for the threads between the two stages. Each stage
    waits at most `linger_seconds`.
    """

    def __init__(
        self,
        before: Callable[[Sequence[T]], None],
        after: Callable[[Sequence[T]], None],
        *,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._before, self._after = before, after
        self._commits = GroupCommit(linger_seconds=linger_seconds)
        self._inside: set[int] = set()
        self._most_inside = 0
        """Since the last run of `before`: the largest number of calls that were inside `around` at the same time."""
        self._between: set[int] = set()
        """The calls between the stages `before` and `after`."""

    @contextmanager
    def around(self, item: T) -> Iterator[None]:
        """Runs the two stages for `item` around the body of the `with` statement.

        An error of a stage is raised. If several calls share the error, each call raises a copy of the error. `after`
        is skipped if the body raises.
        """
        call = (item, object())
        me, changed = id(call[1]), self._commits.changed
        with changed:
            self._inside.add(me)
            self._most_inside = max(self._most_inside, len(self._inside))
        try:
            self._commits.run(
                "before", call, self._begin, enough=lambda waiting: waiting >= self._most_inside
            )
            yield
            self._commits.run(
                "after",
                call,
                self._end,
                enough=lambda _: not self._between,
                entering=lambda: self._between.discard(me),
            )
        finally:
            with changed:
                self._inside.discard(me)
                self._between.discard(me)
                changed.notify_all()

    def _begin(self, calls: Sequence[tuple[T, object]]) -> list[None]:
        passed: set[int] = set()
        try:
            self._before([item for item, _ in calls])
            passed = {id(token) for _, token in calls}
        finally:
            with self._commits.changed:
                self._most_inside = len(self._inside)
                # A thread that was interrupted in the meantime never arrives.
                self._between |= passed & self._inside
        return [None] * len(calls)

    def _end(self, calls: Sequence[tuple[T, object]]) -> list[None]:
        self._after([item for item, _ in calls])
        return [None] * len(calls)
