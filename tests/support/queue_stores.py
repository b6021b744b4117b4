"""The possible places of a queue's records in a simulation: memory, objects of a bucket, or a DynamoDB table in memory.

stores, plain = queue_stores("dynamo")      for `run_simulation`; and the records without faults
records_of(stores, clock)                   in an actor, with its stores
"""

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.protocols.notification_queue import keys_recur
from s3notify_platform.stores.bucket_records import ObjectRecordStore
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from s3notify_platform.stores.memory import MemoryObjectStore, MemoryRecordStore
from tests.support.dynamo import CONFIG, Client, TableInMemory

KINDS = ["memory", "objects", "dynamo"]


def queue_stores(kind):
    """A mapping with one store under the name that `records_of` expects, and the record store over this store."""
    stores = {
        "memory": lambda: {"records": MemoryRecordStore()},
        "objects": lambda: {"cells": MemoryObjectStore()},
        "dynamo": lambda: {"table": TableInMemory("partition", "key")},
    }[kind]()
    return stores, records_of(stores, SYSTEM_CLOCK)


def records_of(stores, clock):
    if "records" in stores:
        return stores["records"]
    if "cells" in stores:
        return ObjectRecordStore(stores["cells"], "r/", clock=clock, keys_recur=keys_recur)
    return DynamoRecordStore(CONFIG, clock=clock, client=Client(stores["table"]))


def rates(kind, faults):
    """The rates of faults for stores of this kind. The rates are lower if a call of the protocol makes several calls of
    the store.
    """
    return {fault: rate / (3 if kind == "objects" else 1) for fault, rate in faults.items()}
