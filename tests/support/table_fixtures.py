"""Fixtures: a table of rounds, with and without deletion vectors, and a clock that is moved by hand."""

import pytest

from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HandClock
from tests.support.log_rounds import Rounds

A, B = 0, 1
RUN, RETENTION = 100.0, 1000.0


@pytest.fixture(params=[False, True], ids=["plain", "vectors"])
def vectors(request):
    return request.param


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def store(clock):
    return MemoryObjectStore(clock=clock)


@pytest.fixture
def rounds(store, clock, vectors):
    return lambda: Rounds(store=store, clock=clock, vectors=vectors, more={"max_run_seconds": RUN})
