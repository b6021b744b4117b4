"""What DynamoTable and DynamoRecordStore make of failures, on a real server behind a proxy that loses things."""

from dataclasses import replace

import pytest

from s3notify_platform.kernel.errors import CorruptError, UnavailableError, UsageError
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
def test_certainly_nothing_happened_is_sent_again(table, proxy, fault):
    """Even under a condition; bounded, and at last the store is unavailable."""
    proxy.faults.extend([fault] * 4)
    assert table.write("put_item", Item=KEY, **IF_ABSENT) == Applied()
    assert proxy.requests == ["PutItem"] * 5
    proxy.faults.extend([fault] * 5)
    with pytest.raises(UnavailableError, match=r"nothing was written"):
        table.write("delete_item", Key=KEY)
    assert table.get(KEY) == KEY


@pytest.mark.parametrize("fault", ["lose_response", "lose_request", "500", "503"])
def test_a_write_in_doubt_is_sent_once(table, proxy, fault):
    """A second try would be refused by the first."""
    proxy.faults.append(fault)
    assert isinstance(table.write("put_item", Item=KEY, **IF_ABSENT), Unknown)
    assert proxy.requests == ["PutItem"]
    assert (table.get(KEY) is not None) == (fault == "lose_response")


def test_a_refusal_says_what_is_there(records, proxy):
    """No read follows it."""
    records.create("p", "a", b"1")
    there, sent = records.read("p", "a"), len(proxy.requests)
    outcome = Updates(records, HurriedClock()).create("p", "a", b"2")
    assert outcome == Changed(record=there, in_doubt=False)
    assert proxy.requests[sent:] == ["PutItem"]


@pytest.mark.parametrize("fault", ["lose_response", "lose_request", "500", "503", "throttle"])
def test_reads_are_sent_again(table, proxy, fault):
    """Four failures of anything, then it works; a fifth is too many, and names table and endpoint."""
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


def test_a_refusal_tells_what_was_there(table):
    """Under ALL_OLD; a transaction tells no item, but that a condition was at fault."""
    there = KEY | {"value": {"B": b"1"}}
    table.write("put_item", Item=there)
    assert table.write("put_item", Item=KEY, **IF_ABSENT) == Refused(found=there)
    put = {"Put": {"TableName": table.config.table, "Item": KEY, **IF_ABSENT}}
    assert isinstance(table.write("transact_write_items", TransactItems=[put]), Refused)


def test_what_an_operator_must_correct(ministack):
    """A missing table, and a request that is wrong, say what to do."""
    table = DynamoTable(ministack.table_config("no-such-table"), clock=HurriedClock())
    for work in (lambda: table.get(KEY), lambda: table.write("put_item", Item=KEY)):
        with pytest.raises(UsageError, match=r"no-such-table.*s3notify init"):
            work()
    table.close()


@pytest.mark.parametrize("fault", ["lose_response", "lose_request", "500"])
def test_records_in_doubt_are_resolved_by_the_caller(records, proxy, fault):
    """Sent once by the store; what is there tells one's own write from another's."""
    updates = Updates(records, HurriedClock())
    created = doubtful(lambda: updates.create("p", "a", b"1"), proxy, fault)
    assert created == Stored(version=records.read("p", "a").version)
    replaced = doubtful(lambda: updates.replace("p", "a", b"2", expected=created.version), proxy, fault)
    assert replaced == Stored(version=records.read("p", "a").version)
    assert records.read("p", "a").value == b"2"
    removed = doubtful(lambda: updates.remove("p", "a", expected=replaced.version), proxy, fault)
    assert records.read("p", "a") is None
    assert isinstance(removed, Changed if fault == "lose_response" else Stored)


def test_a_write_in_doubt_never_overwrites_another(records, config, proxy):
    """Not applied, and another was first since: what is there is returned, not overwritten."""
    other = DynamoRecordStore(replace(config), clock=HurriedClock())
    first = records.create("p", "a", b"1").etag
    proxy.faults.append("lose_request")
    assert isinstance(records.replace("p", "a", b"ours", expected=first), Unknown)

    class Overtaken(HurriedClock):
        def sleep(self, seconds):
            other.replace("p", "a", b"other", expected=first)

    # The put is lost, and so is the first look.
    proxy.faults.extend(["lose_request"] + ["500"] * 5)
    outcome = Updates(records, Overtaken()).replace("p", "a", b"ours", expected=first)
    assert (outcome.record.value, outcome.in_doubt) == (b"other", True)
    assert records.replace("p", "a", b"ours", expected=first) == Conflict()
    other.close()


def test_an_addition_in_doubt_is_counted_once(records, proxy):
    """Recognised by its token while it is the last; else `Unknown`, and never sent again."""
    assert doubtful(lambda: records.add("p", "n", 2), proxy) == 2
    assert isinstance(doubtful(lambda: records.add("p", "n", 3), proxy, "lose_request"), Unknown)
    assert proxy.requests == ["UpdateItem", "GetItem"] * 2
    assert records.add("p", "n", 0) == 2


def test_a_store_that_stays_away(records, proxy):
    """Before anything was sent: unavailable. After: unknown."""
    proxy.faults.extend(["throttle"] * 5)
    with pytest.raises(UnavailableError):
        records.create("p", "a", b"1")
    proxy.faults.extend(["lose_response"] + ["500"] * 200)
    assert isinstance(records.create("p", "a", b"1"), Unknown)
    assert isinstance(records.remove("p", "a", expected=Version("v")), Unknown)
    assert isinstance(records.add("p", "n", 1), Unknown)
    proxy.faults.clear()
    assert records.read("p", "a").value == b"1"


def test_a_foreign_item(records, table):
    """An item that we did not write is an error, not a record."""
    table.write("put_item", Item=KEY | {"other": {"S": "x"}})
    with pytest.raises(CorruptError, match="was not written by this package"):
        records.read("p", "a")
