"""Threads that change one record at the same time send together (group commit).

The first thread leads: it sends at once, alone. Threads that come meanwhile wait. When the leader is done, the first
of them leads, and sends for all that wait by then. So there is no background thread, no timer, and no delay for a
single thread; n threads at once cost two sends instead of n. If a leader is interrupted (`KeyboardInterrupt`), the
next waiting thread leads. What the interrupted one sent may have been applied, so every job must be safe to repeat.
"""

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiter:
    job: Any
    called: Event = field(default_factory=Event)
    """Set when it has its result, or has to lead."""
    served: bool = False
    result: Any = None


class Combiner:
    """Combines the jobs of concurrent threads, by key. Thread-safe; holds no state while no job runs."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._waiting: dict[Hashable, list[_Waiter]] = {}
        """The waiting jobs of each key that has a leader."""

    def run(self, key: Hashable, job: Any, send: Callable[[Sequence[Any]], Sequence[Any]]) -> Any:
        """The result of `job`: its item of what one thread's `send(jobs)` returned, raised if it is an error.

        An error that `send` itself raises is the result of every job.
        """
        me = _Waiter(job=job)
        with self._lock:
            leads = key not in self._waiting
            if leads:
                self._waiting[key] = []
            else:
                self._waiting[key].append(me)
        if not leads:
            me.called.wait()
        if led := not me.served:
            self._lead(key, me, send)
        if not isinstance(me.result, Exception):
            return me.result
        if led:
            raise me.result
        # Threads may share the error: each raises a copy, with its own traceback.
        raise copy.copy(me.result) from me.result

    def _lead(self, key: Hashable, me: _Waiter, send: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        with self._lock:
            together = [me, *self._waiting[key]]
            self._waiting[key] = []
        try:
            results: Sequence[Any] = send([waiter.job for waiter in together])
            self._serve(together, results)
        except Exception as error:  # noqa: BLE001 - raised again by each of them
            self._serve(together, [error] * len(together))
        finally:
            self._hand_over(key, together)

    @staticmethod
    def _serve(together: Sequence[_Waiter], results: Sequence[Any]) -> None:
        for waiter, result in zip(together, results, strict=True):
            waiter.result, waiter.served = result, True

    def _hand_over(self, key: Hashable, together: Sequence[_Waiter]) -> None:
        with self._lock:
            unserved = [waiter for waiter in together[1:] if not waiter.served]
            waiting = [*unserved, *self._waiting.pop(key)]
            if waiting:
                self._waiting[key] = waiting[1:]
        for waiter in together:
            if waiter.served:
                waiter.called.set()
        if waiting:
            waiting[0].called.set()
