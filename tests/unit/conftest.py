"""Fixtures of most unit tests: a clock, and stores in memory."""

import pytest

from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.clocks import HandClock


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def records():
    return MemoryRecordStore()


@pytest.fixture
def store():
    return MemoryObjectStore()
