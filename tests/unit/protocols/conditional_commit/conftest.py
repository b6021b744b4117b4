"""Fixtures: a commit by leases, over a store without conditions."""

import pytest

from tests.support.lease_commits import HookedStore, ManualClock, WatchedLeases, lease_commit


@pytest.fixture
def store():
    return HookedStore()


@pytest.fixture
def leases():
    return WatchedLeases()


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def commit(store, leases, clock):
    return lease_commit(store, leases, clock)
