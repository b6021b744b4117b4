"""DynamoTable and DynamoRecordStore under failures, on a real server behind a faulty proxy."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import CorruptError, RefusedError, UnavailableError, UsageError
from s3notify_platform.kernel.ports import Conflict, Unknown, Version
from s3notify_platform.protocols.updates import Changed, Stored, Updates
from s3notify_platform.stores.dynamodb.dynamo_table import Applied, DynamoTable, Refused
from s3notify_platform.stores.dynamodb.record_store import DynamoRecordStore
from tests.contracts.fault_proxy import FaultProxy
from tests.support.clocks import HurriedClock
from tests.support.tables import create_record_table

pytestmark = pytest.mark.server

KEY = {"partition": {"S": "p"}, "key": {"S": "a"}}
IF_ABSENT = {
    "ConditionExpression": "attribute_not_exists(#k)",
    "ExpressionAttributeNames": {"#k": "partition"},
}


@pytest.fixture
def proxy(ministack):
    with FaultProxy(ministack.endpoint_url) as proxy:
        yield proxy


@pytest.fixture
def config(ministack, proxy):
    config = ministack.table_config()
    create_record_table(config)
    return replace(config, endpoint_url=proxy.url)


@pytest.fixture
def table(config):
    table = DynamoTable(config, clock=HurriedClock())
    yield table
    table.close()


@pytest.fixture
def records(config):
    store = DynamoRecordStore(config, clock=HurriedClock())
    yield store
    store.close()


def doubtful(write, proxy, fault="lose_response"):
    proxy.faults.append(fault)
    return write()


@pytest.mark.parametrize("fault", ["throttle", "transaction_conflict"])
def test_request_that_was_not_applied_is_retried(table, proxy, fault):
    """The server certainly did not apply the request, so a retry is safe even if the write has a condition.
    Without retries, each short overload of DynamoDB would fail a write. Without a limit on retries, a long
    overload would never cause an error.
    """
    proxy.faults.extend([fault] * 4)
    assert table.write("put_item", Item=KEY, **IF_ABSENT) == Applied()
    assert proxy.requests == ["PutItem"] * 5
    proxy.faults.extend([fault] * 5)
    with pytest.raises(UnavailableError, match=r"nothing was written"):
        table.write("delete_item", Key=KEY)
    assert table.get(KEY) == KEY


@pytest.mark.parametrize("fault", ["lose_response", "lose_request", "500", "503"])
def test_write_in_doubt_is_sent_once(table, proxy, fault):
    """If the write were sent again, it could conflict with the first request."""
    proxy.faults.append(fault)
    assert isinstance(table.write("put_item", Item=KEY, **IF_ABSENT), Unknown)
    assert proxy.requests == ["PutItem"]
    assert (table.get(KEY) is not None) == (fault == "lose_response")


def test_refusal_returns_the_existing_record(records, proxy):
    """The refusal itself must return the record, so that no read is needed."""
    records.create("p", "a", b"1")
    there, sent = records.read("p", "a"), len(proxy.requests)
    outcome = Updates(records, HurriedClock()).create("p", "a", b"2")
    assert outcome == Changed(record=there, in_doubt=False)
    assert proxy.requests[sent:] == ["PutItem"]


@pytest.mark.parametrize("fault", ["lose_response", "lose_request", "500", "503", "throttle"])
def test_reads_are_retried(table, proxy, fault):
    """Without retries, each lost answer would fail an operation of the caller. Without the table and the endpoint in
    the error, an operator would not know which service to check.
    """
    table.write("put_item", Item=KEY)
    for read in (
        lambda: table.get(KEY),
        lambda: table.get_together([KEY])[0],
        lambda: next(table.query("partition", "p")),
    ):
        proxy.faults.extend([fault] * 4)
        assert read() == KEY
        proxy.faults.extend([fault] * 5)
        with pytest.raises(UnavailableError, match=rf"{table.config.table}.*{proxy.url}"):
            read()
    assert not proxy.faults


def test_refusal_returns_the_former_item(table):
    """Without the item in the refusal (ALL_OLD), each conflict would cost another read. A cancelled
    transaction returns no item. If such a transaction did not count as a refusal, a caller would report an
    invalid request instead of a conflict.
    """
    there = KEY | {"value": {"B": b"1"}}
    table.write("put_item", Item=there)
    assert table.write("put_item", Item=KEY, **IF_ABSENT) == Refused(found=there)
    put = {"Put": {"TableName": table.config.table, "Item": KEY, **IF_ABSENT}}
    assert isinstance(table.write("transact_write_items", TransactItems=[put]), Refused)


def test_operator_errors_name_a_remedy_and_no_secret(ministack, proxy):
    """If a missing table or refused credentials counted as an outage, callers would repeat the request
    without success. Without the table's name, and `s3notify init` or the reason of the refusal, an operator
    would not know what to correct. A secret in the error would be visible to all readers of the log.
    """
    secret = "s3cr3t-guess"
    config = replace(
        ministack.table_config("no-such-table"), endpoint_url=proxy.url, secret_access_key=secret
    )
    table = DynamoTable(config, clock=HurriedClock())
    for work in (lambda: table.get(KEY), lambda: table.write("put_item", Item=KEY)):
        with pytest.raises(UsageError, match=r"no-such-table.*s3notify init") as missing:
            work()
        proxy.faults.append("denied")
        with pytest.raises(RefusedError, match=r"no-such-table.*refused.*AccessDenied") as refused:
            work()
        assert secret not in f"{missing.value} {refused.value}"
    table.close()


@pytest.mark.parametrize("fault", ["lose_response", "lose_request", "500"])
def test_caller_resolves_a_record_in_doubt(records, proxy, fault):
    """The store sends a write only once. If the caller sent the write again without a read, the caller would mistake
    its own applied write for the write of another writer.
    """
    updates = Updates(records, HurriedClock())
    created = doubtful(lambda: updates.create("p", "a", b"1"), proxy, fault)
    assert created == Stored(version=records.read("p", "a").version)
    replaced = doubtful(lambda: updates.replace("p", "a", b"2", expected=created.version), proxy, fault)
    assert replaced == Stored(version=records.read("p", "a").version)
    assert records.read("p", "a").value == b"2"
    removed = doubtful(lambda: updates.remove("p", "a", expected=replaced.version), proxy, fault)
    assert records.read("p", "a") is None
    assert isinstance(removed, Changed if fault == "lose_response" else Stored)


def test_write_in_doubt_never_overwrites_another(records, config, proxy):
    """The request of the write is lost, and another writer writes first. If the caller then replaced the other
    writer's record, the other writer's change would be lost, although the other writer has reported success.
    """
    other = DynamoRecordStore(replace(config), clock=HurriedClock())
    first = records.create("p", "a", b"1").etag
    proxy.faults.append("lose_request")
    assert isinstance(records.replace("p", "a", b"ours", expected=first), Unknown)

    class Overtaken(HurriedClock):
        def sleep(self, seconds):
            other.replace("p", "a", b"other", expected=first)

    # The answer to the put is lost, and so is the answer to the first read.
    proxy.faults.extend(["lose_request"] + ["500"] * 5)
    outcome = Updates(records, Overtaken()).replace("p", "a", b"ours", expected=first)
    assert (outcome.record.value, outcome.in_doubt) == (b"other", True)
    assert records.replace("p", "a", b"ours", expected=first) == Conflict()
    other.close()


def test_addition_in_doubt_is_counted_once(records, proxy):
    """If no other addition followed, the token shows that the addition was applied.

    Otherwise the result is `Unknown`, without a retry.
    """
    assert doubtful(lambda: records.add("p", "n", 2), proxy) == 2
    assert isinstance(doubtful(lambda: records.add("p", "n", 3), proxy, "lose_request"), Unknown)
    assert proxy.requests == ["UpdateItem", "GetItem"] * 2
    assert records.add("p", "n", 0) == 2
    assert doubtful(lambda: records.add("p", "n", -2), proxy) == 0


def test_outage_is_unavailable_or_unknown(records, proxy):
    """If a request that may have been applied were reported as unavailable, the caller would believe that nothing
    was written, and could count an addition twice. If a refused request were reported as unknown, the caller would
    send a needless read.
    """
    proxy.faults.extend(["throttle"] * 5)
    with pytest.raises(UnavailableError):
        records.create("p", "a", b"1")
    proxy.faults.extend(["lose_response"] + ["500"] * 200)
    assert isinstance(records.create("p", "a", b"1"), Unknown)
    assert isinstance(records.remove("p", "a", expected=Version("v")), Unknown)
    assert isinstance(records.add("p", "n", 1), Unknown)
    proxy.faults.clear()
    assert records.read("p", "a").value == b"1"


def test_foreign_item_is_an_error(records, table):
    """An item of another program must not be read as a record."""
    table.write("put_item", Item=KEY | {"other": {"S": "x"}})
    with pytest.raises(CorruptError, match="was not written by this package"):
        records.read("p", "a")
