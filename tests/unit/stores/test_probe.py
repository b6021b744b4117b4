"""The probe, on stores that honour conditions and on stores that ignore them."""

import re

import pytest

from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.ports import list_all
from s3notify_platform.stores.memory import MemoryObjectStore
from s3notify_platform.stores.probe import Capabilities, choose_commit, probe
from tests.contracts.ignoring_store import IgnoringStore


def test_a_good_store_gets_native_commits():
    """Otherwise a good store would be refused, or the probe would leave objects behind."""
    store = MemoryObjectStore()
    store.put("mine", b"1")
    found = probe(store, "p/")
    assert found.problems == ()
    assert found.mode == "native"
    assert all(getattr(found, name) for name in Capabilities.__slots__ if name.startswith(("can_", "copy_")))
    assert choose_commit(found).commit == "native"
    assert [meta.key for meta in list_all(store, "")] == ["mine"]


@pytest.mark.parametrize(
    ("ignored", "lacking", "refusal"),
    [
        (
            "create",
            "create_if_absent",
            r"lacks create-if-absent.*DynamoDB lease_table .* and a records_table",
        ),
        ("match", "put_if_match", r"lacks put-if-match.*DynamoDB lease_table .* and a records_table"),
        ("delete", "delete_if_match", None),
        ("copy", "copy_if_absent", None),
        ("upload", "upload_if_absent", None),
    ],
)
def test_an_ignored_condition_is_found(ignored, lacking, refusal):
    """The store ignores the condition, and answers as if it had honoured it. If the probe missed this, commits would
    overwrite each other.
    """
    found = probe(IgnoringStore(MemoryObjectStore(), {ignored}), "")
    conditions = {"create_if_absent", "put_if_match", "delete_if_match", "copy_if_absent", "upload_if_absent"}
    assert {name for name in conditions if not getattr(found, name)} == {lacking}
    assert any(problem.startswith(lacking) and "ignored" in problem for problem in found.problems)
    if refusal is None:
        assert choose_commit(found).commit == "native"
        assert found.mode == "native"
    else:
        assert found.mode == "external"
        with pytest.raises(UsageError, match=refusal):
            choose_commit(found)


USABLE = dict.fromkeys(("reachable", "can_list", "can_read", "can_write", "can_delete"), True)
GOOD = Capabilities(**USABLE, create_if_absent=True, put_if_match=True)
NO_CREATE = Capabilities(**USABLE, put_if_match=True)
NO_MATCH = Capabilities(**USABLE, create_if_absent=True)


@pytest.mark.parametrize(
    ("found", "wanted", "tables", "commit", "reason"),
    [
        (GOOD, "auto", "", "native", "honours If-None-Match"),
        (GOOD, "auto", "lease records", "native", "honours If-None-Match"),
        (GOOD, "native", "", "native", "requested"),
        (GOOD, "dynamodb", "lease", "dynamodb", "requested"),
        (NO_CREATE, "auto", "lease records", "dynamodb", "lacks create-if-absent.*lease table is named"),
        (NO_MATCH, "auto", "lease records", "dynamodb", "lacks put-if-match.*lease table is named"),
        (NO_MATCH, "dynamodb", "lease records", "dynamodb", "requested"),
    ],
)
def test_the_commit_fits_the_store_and_the_setting(found, wanted, tables, commit, reason):
    """Otherwise an unsafe commit mode would be chosen, or the user would not learn the reason for the chosen mode."""
    decision = choose_commit(
        found, wanted, has_lease_table="lease" in tables, has_records_table="records" in tables
    )
    assert decision.commit == commit
    assert re.search(reason, decision.reason)


@pytest.mark.parametrize(
    ("found", "wanted", "tables", "reason"),
    [
        (GOOD, "dynamodb", "records", r"requested: name a DynamoDB lease_table.*or use native commits"),
        (NO_CREATE, "native", "lease records", r"lacks create-if-absent.*native commits need"),
        (NO_MATCH, "native", "lease records", r"lacks put-if-match.*native commits need"),
        (
            NO_CREATE,
            "auto",
            "records",
            r"lacks create-if-absent.*name a DynamoDB lease_table.*or use another store",
        ),
        (NO_CREATE, "auto", "lease", r"lacks create-if-absent.*name a DynamoDB records_table"),
        (NO_MATCH, "dynamodb", "lease", r"lacks put-if-match.*name a DynamoDB records_table"),
    ],
)
def test_a_store_without_a_safe_commit_is_refused(found, wanted, tables, reason):
    """Otherwise commits or records would be unsafe, or the user would not learn which table is missing."""
    with pytest.raises(UsageError, match=reason):
        choose_commit(found, wanted, has_lease_table="lease" in tables, has_records_table="records" in tables)


class _Refusing(IgnoringStore):
    def __init__(self, refused, error):
        super().__init__(MemoryObjectStore(), ())
        self.refused, self.error = refused, error

    def _target(self, kind):
        if kind in self.refused:
            raise self.error
        return super()._target(kind)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("LIST", "can_list"), ("PUT", "can_write"), ("GET", "can_read"), ("DELETE", "can_delete")],
)
def test_a_missing_permission_is_reported(kind, name):
    """Otherwise the user would not learn which permission is missing, and the first run would fail."""
    found = probe(_Refusing({kind}, UsageError("refused: check the policy")), "")
    assert found.reachable
    assert not getattr(found, name)
    assert found.mode == "unusable"
    for tables in (False, True):
        with pytest.raises(UsageError, match="check the policy"):
            choose_commit(found, has_lease_table=tables, has_records_table=tables)


def test_an_unreachable_store_is_reported_once():
    kinds = {"LIST", "PUT", "GET", "HEAD", "DELETE", "COPY"}
    found = probe(_Refusing(kinds, UnavailableError("nobody there")), "")
    assert not found.reachable
    assert found.problems == ("nobody there",)


@pytest.mark.server
def test_servers_of_the_tests_have_native_commits(ministack, seaweed):
    """Otherwise the probe would misjudge a real server. Only one of the two servers honours a COPY that requires
    absence, and only the other server lists in order.
    """
    from s3notify_platform.stores.s3 import S3ObjectStore

    for server, copy_if_absent, ordered in ((ministack, False, True), (seaweed, True, False)):
        store = S3ObjectStore(server.config(server.make_bucket()))
        found = probe(store, "p/")
        assert store.list("").objects == ()
        store.close()
        assert found.mode == "native", (server.endpoint_url, found.problems)
        assert (found.copy_if_absent, found.list_is_ordered) == (copy_if_absent, ordered)
        assert abs(found.clock_skew_ms) < 60_000
