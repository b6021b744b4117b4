"""A store is tried out once for each source, before anything is committed to it."""

import json

import pytest
from dagster_aws.s3 import S3Resource

from s3notify_platform.errors import UsageError
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.resources import SlotSpark
from s3notify_platform.ports import list_all
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.contracts.ignoring_store import IgnoringStore

PLACE = "_s3notify/orders/store.json"


def manager(monkeypatch, store):
    monkeypatch.setattr(SlotIOManager, "store", property(lambda _: store))
    return SlotIOManager(
        s3=S3Resource(), spark=SlotSpark(), source_name="orders", bucket="any", prefix="in/", format="jsonl"
    )


def test_a_store_that_keeps_its_conditions_is_probed_once(monkeypatch):
    """The first check leaves what it found; later ones cost one GET."""
    store = CountingStore(MemoryObjectStore())
    io = manager(monkeypatch, store)
    io.check_store()
    assert json.loads(store.get(PLACE).body)["mode"] == "native"
    store.counts.clear()
    io.check_store()
    assert {kind: count for kind, count in store.counts.items() if count} == {"GET": 1}


@pytest.mark.parametrize("ignored", ["create", "match"])
def test_a_store_that_ignores_a_condition_is_refused(monkeypatch, ignored):
    """Nothing is left behind, and the next run asks again."""
    store = IgnoringStore(MemoryObjectStore(), [ignored])
    io = manager(monkeypatch, store)
    for _ in range(2):
        with pytest.raises(UsageError, match="If-"):
            io.check_store()
    assert list(list_all(store, "")) == []
