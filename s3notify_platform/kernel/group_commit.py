"""Group commit: threads of one process that send the same kind of work at the same time send it together.

One thread leads: it takes all jobs that wait, and sends them; jobs that come meanwhile wait for the next turn. There is
no background thread, and a single thread never waits. If a leader is interrupted (`KeyboardInterrupt`), another thread
sends what it had taken, so sending has to be safe to repeat.
"""

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import Any, Final, Generic, TypeVar

LINGER_SECONDS: Final = 0.02
"""The wait of a thread for others: it costs less than the turn that it may save."""

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
    """Sends the jobs of concurrent threads together, by key. Thread-safe; holds no state while no job runs."""

    def __init__(self, *, linger_seconds: float = 0.0) -> None:
        """`linger_seconds`: the longest that a leader waits for others, where its caller asks for that."""
        self._linger_seconds = linger_seconds
        self._groups: dict[Hashable, _Group] = {}
        self.changed = Condition()
        """Held while jobs come and go. Notify it when `enough` may have another answer."""

    def run(
        self,
        key: Hashable,
        job: Any,
        send: Callable[[Sequence[Any]], Sequence[Any]],
        *,
        enough: Callable[[int], bool] = lambda _: True,
        entering: Callable[[], None] = lambda: None,
    ) -> Any:
        """The result of `job`: its item of what one thread's `send(jobs)` returned, raised if it is an error.

        An error that `send` itself raises is the result of every job. `enough`: whether a leader need not wait for
        more jobs than so many. `entering` is called as the job joins those that wait.
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
        # Threads may share the error: each raises a copy, with its own traceback.
        raise copy.copy(me.result) from me.result

    def _taken(self, key: Hashable, group: _Group, me: _Call, enough: Callable[[int], bool]) -> list[_Call]:
        """The calls that this thread has to send; none, if another one has sent its own."""
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
        except Exception as error:  # noqa: BLE001 - raised again by each of them
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
    """Two stages, `before` and `after` what each thread does alone, each a group commit. Thread-safe.

    `before` waits for as many threads as were at work at one time since its last turn; `after` for those that have
    passed `before` and are on their way; both at most `linger_seconds`.
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
        """Since the last turn of `before`."""
        self._between: set[int] = set()
        """Calls that have passed `before`, and not come to `after` yet."""

    @contextmanager
    def around(self, item: T) -> Iterator[None]:
        """Work for `item` in both stages, and in between run what is inside.

        An error of a stage is raised; if several calls share it, each raises a copy. `after` is left out if what is
        inside raises.
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
                # A thread that was interrupted meanwhile never arrives.
                self._between |= passed & self._inside
        return [None] * len(calls)

    def _end(self, calls: Sequence[tuple[T, object]]) -> list[None]:
        self._after([item for item, _ in calls])
        return [None] * len(calls)
