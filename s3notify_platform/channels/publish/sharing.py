"""Threads of one process that do the same at about the same time do it together (group commit).

Calls pass through stages. In each stage one thread leads: it takes all calls that wait there, and works for all of
them, while later ones gather for the next turn. Before it begins it waits for other threads that are at work, as long
as they may still join, at most `linger_seconds`. So n threads that come and go together cost one turn, and a single
thread never waits. There is no background thread. If a leader is interrupted (`KeyboardInterrupt`), another one works
for the rest; so the work has to be safe to repeat.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import Final, Generic, TypeVar

LINGER_SECONDS: Final = 0.02
"""How long a thread waits for others, for which it is worth one turn fewer."""

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class _Call(Generic[T]):
    item: T
    done: bool = False
    error: Exception | None = None


@dataclass(slots=True, kw_only=True)
class _Stage(Generic[T]):
    waiting: list[_Call[T]] = field(default_factory=list)
    led: bool = False


class Sharing(Generic[T]):
    """Two stages, `before` and `after` what each thread does alone. Thread-safe.

    `before` waits for as many threads as were at work at one time since its last turn; `after` for those that have
    passed `before` and are on their way.
    """

    def __init__(
        self,
        before: Callable[[Sequence[T]], None],
        after: Callable[[Sequence[T]], None],
        *,
        linger_seconds: float = LINGER_SECONDS,
    ) -> None:
        self._work = (before, after)
        self._linger_seconds = linger_seconds
        self._changed = Condition()
        self._stages: tuple[_Stage[T], _Stage[T]] = (_Stage(), _Stage())
        self._inside = 0
        self._most_inside = 0
        """Since the last turn of `before`."""
        self._between = 0

    @contextmanager
    def around(self, item: T) -> Iterator[None]:
        """Work for `item` in both stages, and in between run what is inside.

        An error of a stage is raised; if several calls share it, each raises a copy. `after` is left out if what is
        inside raises.
        """
        with self._changed:
            self._inside += 1
            self._most_inside = max(self._most_inside, self._inside)
        try:
            self._run(0, item)
            try:
                yield
            except BaseException:
                with self._changed:
                    self._between -= 1
                    self._changed.notify_all()
                raise
            self._run(1, item)
        finally:
            with self._changed:
                self._inside -= 1

    def _run(self, number: int, item: T) -> None:
        stage, call = self._stages[number], _Call(item=item)
        with self._changed:
            self._between -= number
            stage.waiting.append(call)
            self._changed.notify_all()
            try:
                together = self._joined(number, call)
            except BaseException:
                if call in stage.waiting:
                    stage.waiting.remove(call)
                raise
        if together:
            self._lead(number, call, together)
        if call.error is not None:
            raise call.error if together else copy.copy(call.error)

    def _joined(self, number: int, call: _Call[T]) -> list[_Call[T]]:
        """The calls that this thread has to work for; none, if another one has worked for it."""
        stage = self._stages[number]
        self._changed.wait_for(lambda: call.done or not stage.led)
        if call.done:
            return []
        stage.led = True
        try:
            self._changed.wait_for(lambda: self._complete(number), self._linger_seconds)
        except BaseException:
            stage.led = False
            self._changed.notify_all()
            raise
        together, stage.waiting = stage.waiting, []
        return together

    def _complete(self, number: int) -> bool:
        stage = self._stages[number]
        if number:
            return not self._between
        return len(stage.waiting) >= self._most_inside

    def _lead(self, number: int, own: _Call[T], together: list[_Call[T]]) -> None:
        stage = self._stages[number]
        try:
            self._work[number]([call.item for call in together])
        except Exception as error:  # noqa: BLE001 - raised again by each of them
            self._end(stage, together, error)
        except BaseException:
            with self._changed:
                others = [call for call in together if call is not own]
                stage.waiting, stage.led = [*others, *stage.waiting], False
                self._changed.notify_all()
            raise
        else:
            self._end(stage, together, None)

    def _end(self, stage: _Stage[T], together: list[_Call[T]], error: Exception | None) -> None:
        with self._changed:
            for call in together:
                call.done, call.error = True, error
            stage.led = False
            if stage is self._stages[0]:
                self._most_inside = self._inside
                self._between += len(together) if error is None else 0
            self._changed.notify_all()
