"""The contract of `ObjectStore`. A subclass gives the store, and the known limits of its server."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from s3notify_platform.kernel.errors import ConflictError, NotFoundError, UsageError
from s3notify_platform.kernel.ports import (
    ABSENT,
    Conflict,
    CopyRange,
    ETag,
    IfMatch,
    NotModified,
    ObjectStore,
    StoredObject,
    Unknown,
    Written,
    list_all,
)

PART = 5 << 20
"""The smallest size of a part that S3 accepts, except for the last part."""

ODD_KEYS = {
    "spaces": " a b ",
    "plus": "a+b",
    "percent": "a%20b%",
    "double slash": "a//b",
    "leading slash": "/a",
    "trailing slash": "a/",
    "dots": "a/../b/./c",
    "newline": "a\nb",
    "tab": "a\tb",
    "emoji": "\U0001f642",
    "letters": "日本語/ключ",
    "query": "a?b#c&d=e",
    "wild": "a*b~c^d`e|f{g}",
    "quotes": "a'b\"c<d>e",
    "backslash": "a\\b",
    "1024 bytes": "/".join(["x" * 204] * 5),
    "long segment": "x" * 1024,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Known limits of a server. Each limit is a finding about the server, and no code may rely on it."""

    refused_keys: frozenset[str] = frozenset()
    atomic_replace: bool = True
    copy_conditions: bool = True
    delete_conditions: bool = True
    upload_conditions: frozenset[str] = frozenset({"absent", "match"})
    upload_refusals: bool = True
    source_pinned: bool = True
    ordered: bool = True


class ObjectStoreSuite:
    """The contract. Subclasses define the fixture `store`, an empty bucket."""

    traits = Traits()

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        raise NotImplementedError

    def test_get_returns_an_object_as_it_was_put(self, store):
        """GET and HEAD return body, metadata, size and ETag as written. For a missing object, GET and HEAD return
        None.
        """
        assert store.get("a") is None
        assert store.head("a") is None
        written = store.put("a", b"body", metadata={"writer": "w1"})
        found = store.get("a")
        assert isinstance(written, Written)
        assert isinstance(found, StoredObject)
        assert found.body == b"body"
        assert found.meta.etag == written.etag
        assert found.meta.metadata == {"writer": "w1"}
        head = store.head("a")
        assert head is not None
        assert (head.key, head.etag, head.size) == ("a", written.etag, 4)
        assert head.metadata == {"writer": "w1"}
        assert head.modified_ms > 0

    @pytest.mark.parametrize(
        "metadata",
        [{"title": "Zürich"}, {"title": "a\nb"}, {"title": "a\x7f"}, {"x y": "1"}, {"é": "1"}, {"": "1"}],
        ids=ascii,
    )
    def test_metadata_that_no_header_can_hold_is_refused(self, store, metadata):
        """Otherwise the client would fail in an unforeseen way, or write an object that not every client can read."""
        store.put("source", b"1")
        for write in (
            lambda: store.put("a", b"1", metadata=metadata),
            lambda: store.copy("source", "a", metadata=metadata),
            lambda: store.begin_upload("a", metadata=metadata),
        ):
            with pytest.raises(UsageError, match="metadata of 'a'"):
                write()
        assert store.get("a") is None

    @pytest.mark.parametrize("metadata", [{"content-type": "text/x"}, {"storage-class": "STANDARD"}])
    def test_metadata_named_like_a_header_is_metadata(self, store, metadata):
        """Otherwise a caller's metadata could change the storage class of the object, or would be lost."""
        assert isinstance(store.put("a", b"1", metadata=metadata), Written)
        assert store.get("a").meta.metadata == store.head("a").metadata == metadata

    def test_empty_body_is_an_object(self, store):
        """An object of 0 bytes can be written and read like any other object."""
        store.put("empty", b"")
        assert store.get("empty").body == b""
        assert store.head("empty").size == 0

    def test_etag_changes_with_the_content_and_has_no_quotes(self, store):
        """Callers compare ETags; only the adapter handles quotes."""
        first, second = store.put("a", b"1").etag, store.put("a", b"2").etag
        assert first != second
        assert '"' not in first
        assert [meta.etag for meta in store.list("").objects] == [second]

    def test_get_evaluates_conditions(self, store):
        """`if_match` pins a version; `if_none_match` makes a transfer of an unchanged body unnecessary."""
        first = store.put("a", b"1").etag
        second = store.put("a", b"2").etag
        assert store.get("a", if_match=first) == Conflict()
        assert store.get("a", if_match=second).body == b"2"
        assert store.get("a", if_none_match=second) == NotModified()
        assert store.get("a", if_none_match=first).body == b"2"
        assert store.get("gone", if_match=first) is None

    def test_get_returns_a_range(self, store):
        """The result is the part of the range that the object has. For a missing object, the result is None."""
        assert store.get_range("a", 0, 5) is None
        store.put("a", b"0123456789")
        assert store.get_range("a", 0, 1) == b"0"
        assert store.get_range("a", 3, 7) == b"3456"
        assert store.get_range("a", 0, 10) == b"0123456789"
        assert store.get_range("a", 8, 20) == b"89"
        assert store.get_range("a", 10, 20) == b""

    def test_create_if_absent_creates_once(self, store):
        """The second create conflicts and changes nothing; after a delete the object may be created again."""
        assert isinstance(store.put("a", b"1", precondition=ABSENT), Written)
        assert store.put("a", b"2", precondition=ABSENT) == Conflict()
        assert store.get("a").body == b"1"
        store.delete("a")
        assert isinstance(store.put("a", b"3", precondition=ABSENT), Written)

    def test_put_if_match_needs_the_current_etag(self, store):
        """The put is applied only if the expected ETag is the current one. A put to a missing object is not applied."""
        first = store.put("a", b"1").etag
        second = store.put("a", b"2", precondition=IfMatch(etag=first))
        assert isinstance(second, Written)
        assert store.put("a", b"3", precondition=IfMatch(etag=first)) == Conflict()
        assert store.put("gone", b"3", precondition=IfMatch(etag=first)) == Conflict()
        assert store.get("a").body == b"2"
        assert store.get("gone") is None

    def test_delete_removes_an_object(self, store):
        """A delete removes the object; deleting a missing object is no error."""
        store.put("a", b"1")
        assert store.delete("a") == Written(etag=None)
        assert store.get("a") is None
        assert store.delete("a") == Written(etag=None)

    def test_delete_if_match_needs_the_current_etag(self, store):
        """The delete needs the current ETag, and conflicts if the object is missing.

        If a server ignores the condition, the probe must report this.
        """
        first = store.put("a", b"1").etag
        second = store.put("a", b"2").etag
        refused = store.delete("a", precondition=IfMatch(etag=first))
        assert (refused == Conflict()) == self.traits.delete_conditions
        assert (store.get("a") is not None) == self.traits.delete_conditions
        if self.traits.delete_conditions:
            assert store.delete("a", precondition=IfMatch(etag=second)) == Written(etag=None)
            assert store.get("a") is None
            assert store.delete("a", precondition=IfMatch(etag=second)) == Conflict()

    def test_copy_keeps_body_and_metadata(self, store):
        """Body and metadata are copied. An error names a missing source. A copy of an object onto itself is refused."""
        store.put("a", b"1", metadata={"writer": "w1"})
        assert isinstance(store.copy("a", "b"), Written)
        assert store.get("b").body == b"1"
        assert store.get("b").meta.metadata == {"writer": "w1"}
        with pytest.raises(NotFoundError, match="gone"):
            store.copy("gone", "c")
        with pytest.raises(UsageError, match="itself"):
            store.copy("a", "a")

    def test_copy_adds_metadata(self, store):
        """The copy has the source's metadata and the given metadata; the source keeps its own.

        An error names a missing source.
        """
        store.put("a", b"1", metadata={"kept": "k", "writer": "w1"})
        assert isinstance(store.copy("a", "b", metadata={"writer": "w2"}), Written)
        assert store.get("b").body == b"1"
        assert store.get("b").meta.metadata == {"kept": "k", "writer": "w2"}
        assert store.head("a").metadata == {"kept": "k", "writer": "w1"}
        with pytest.raises(NotFoundError, match="gone"):
            store.copy("gone", "c", metadata={"writer": "w2"})

    def test_copy_if_absent_creates_once(self, store):
        """The target is created once. If a server ignores this condition, the probe must report this."""
        store.put("a", b"1")
        store.put("b", b"2")
        assert isinstance(store.copy("a", "c", precondition=ABSENT), Written)
        second = store.copy("b", "c", precondition=ABSENT)
        assert (second == Conflict()) == self.traits.copy_conditions
        assert (store.get("c").body == b"1") == self.traits.copy_conditions

    def test_upload_joins_parts_in_any_order(self, store):
        """Parts may be repeated; the object does not exist before the upload is completed."""
        upload = store.begin_upload("large", metadata={"writer": "w1"})
        last = store.send_part("large", upload, 2, b"end")
        store.send_part("large", upload, 1, b"x" * PART)
        first = store.send_part("large", upload, 1, b"a" * PART)
        assert store.head("large") is None
        written = store.complete_upload("large", upload, [first, last])
        found = store.get("large")
        assert found.body == b"a" * PART + b"end"
        assert (found.meta.metadata, found.meta.etag) == ({"writer": "w1"}, written.etag)
        if self.traits.upload_refusals:
            with pytest.raises(NotFoundError):
                store.send_part("large", upload, 1, b"a")

    def test_upload_may_have_one_part(self, store):
        """The last part of an upload may have any size, even if this part is the only one."""
        upload = store.begin_upload("large")
        assert isinstance(
            store.complete_upload("large", upload, [store.send_part("large", upload, 1, b"a")]), Written
        )
        assert store.get("large").body == b"a"

    def test_aborted_upload_cannot_continue(self, store):
        """An aborted upload cannot continue, and a second abort is no error. Other uploads of the same key stay."""
        gone, other = store.begin_upload("large"), store.begin_upload("large")
        etag = store.send_part("large", gone, 1, b"a")
        store.abort_upload("large", gone)
        store.abort_upload("large", gone)
        if self.traits.upload_refusals:
            with pytest.raises(NotFoundError):
                store.send_part("large", gone, 2, b"a")
            with pytest.raises(NotFoundError):
                store.complete_upload("large", gone, [etag])
        assert store.head("large") is None
        etag = store.send_part("large", other, 1, b"b")
        assert isinstance(store.complete_upload("large", other, [etag]), Written)

    @pytest.mark.parametrize("key", ["large", "a b+c%20d", "日本語/ключ"])
    def test_empty_uploads_are_listed_for_one_key(self, store, key):
        """Uploads of other keys are not listed, and uploads that have parts are not listed either."""
        empty, begun = store.begin_upload(key), store.begin_upload(key)
        store.begin_upload(f"{key}r")
        store.send_part(key, begun, 1, b"a")
        assert store.empty_uploads(key) == (empty,)
        store.abort_upload(key, empty)
        assert store.empty_uploads(key) == ()
        assert store.empty_uploads("other") == ()

    def test_upload_if_absent_creates_once(self, store):
        """The upload completes only if the object does not exist; a refused upload still exists.

        `Traits` says if the server ignores this condition.
        """
        store.put("large", b"old")
        upload = store.begin_upload("large", precondition=ABSENT)
        etag = store.send_part("large", upload, 1, b"new")
        refused = store.complete_upload("large", upload, [etag], precondition=ABSENT)
        honoured = "absent" in self.traits.upload_conditions
        assert (refused == Conflict()) == honoured
        assert (store.get("large").body == b"old") == honoured
        if honoured:
            store.delete("large")
            again = store.complete_upload("large", upload, [etag], precondition=ABSENT)
            assert isinstance(again, Written)

    def test_upload_if_match_needs_the_expected_etag(self, store):
        """The upload completes only if the object has the expected ETag."""
        first = store.put("large", b"1").etag
        second = store.put("large", b"2").etag
        condition = IfMatch(etag=first)
        upload = store.begin_upload("large", precondition=condition)
        etag = store.send_part("large", upload, 1, b"new")
        refused = store.complete_upload("large", upload, [etag], precondition=condition)
        honoured = "match" in self.traits.upload_conditions
        assert (refused == Conflict()) == honoured
        if honoured:
            condition = IfMatch(etag=second)
            written = store.complete_upload("large", upload, [etag], precondition=condition)
            assert isinstance(written, Written)
            assert store.get("large").body == b"new"

    def test_parts_are_copied_by_the_store(self, store):
        """The store itself copies ranges of the source. The copy never has bytes of an unexpected version of the
        source.
        """
        store.put("source", b"a" * PART + b"end", metadata={"writer": "w1"})
        source = store.source("", "source")
        upload = store.begin_upload("copied", metadata={"by": "w2"}, source=source)
        etags = [
            store.send_part("copied", upload, 1, CopyRange(source=source, start=0, size=PART)),
            store.send_part("copied", upload, 2, CopyRange(source=source, start=PART, size=3)),
        ]
        assert isinstance(store.complete_upload("copied", upload, etags), Written)
        assert store.get("copied").body == b"a" * PART + b"end"
        assert store.head("copied").metadata == {"by": "w2"}
        store.put("source", b"other")
        upload = store.begin_upload("copied", source=source)
        if self.traits.source_pinned:
            with pytest.raises(ConflictError):
                store.send_part("copied", upload, 1, CopyRange(source=source, start=0, size=3))
            with pytest.raises(ConflictError):
                store.copy(source, "copied", metadata={})

    def test_copy_may_replace_metadata(self, store):
        """The copy has only the given metadata. For a missing source, the result is None."""
        store.put("source", b"1", metadata={"kept": "not"})
        assert isinstance(store.copy(store.source("", "source"), "b", metadata={"writer": "w2"}), Written)
        assert store.get("b").body == b"1"
        assert store.head("b").metadata == {"writer": "w2"}
        assert store.source("", "gone") is None

    @pytest.mark.parametrize("kind", ODD_KEYS)
    def test_odd_keys_are_returned_unchanged(self, store, kind):
        """GET, LIST and COPY return any key unchanged."""
        key = ODD_KEYS[kind]
        target = key[:-1] + "z"
        if kind in self.traits.refused_keys:
            pytest.skip(f"this server is known to fail for keys with: {kind}")
        assert isinstance(store.put(key, kind.encode(), precondition=ABSENT), Written)
        assert store.get(key).body == kind.encode()
        assert store.head(key).key == key
        assert [meta.key for meta in list_all(store, "")] == [key]
        assert [meta.key for meta in list_all(store, key)] == [key]
        if target != key:
            assert isinstance(store.copy(key, target), Written)
            assert store.get(target).body == kind.encode()
        assert store.delete(key) == Written(etag=None)
        assert store.get(key) is None

    @pytest.mark.parametrize("key", ["", "x" * 1025])
    def test_impossible_keys_are_refused(self, store, key):
        """No store can hold these keys, so no request is sent."""
        with pytest.raises(UsageError, match="bytes"):
            store.put(key, b"")

    def test_list_returns_each_object_once(self, store):
        """Every object is listed once, in order, for any page size; `start_after` is exclusive."""
        keys = [f"p/{number:02}" for number in range(11)]
        for key in reversed(keys):
            store.put(key, b"1")
        store.put("q", b"other")
        seen, token = [], None
        while True:
            page = store.list("p/", token=token, limit=3)
            assert len(page.objects) <= 3
            seen += [meta.key for meta in page.objects]
            if (token := page.next_token) is None:
                break
        assert seen == keys
        assert [meta.key for meta in store.list("p/", start_after="p/08").objects] == keys[9:]
        assert [meta.key for meta in list_all(store, "p/", start_after="p/045")] == keys[5:]
        assert store.list("nothing/").objects == ()
        assert store.list("p/", limit=11).next_token is None

    def test_list_continues_after_1000_keys(self, store):
        """1001 keys make two pages, and no key is lost or doubled."""
        keys = [f"many/{number % 7} {number}" for number in range(1001)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b""), keys))
        first = store.list("many/")
        assert len(first.objects) == 1000
        assert first.next_token is not None
        assert sorted(meta.key for meta in list_all(store, "many/")) == sorted(keys)

    def test_list_orders_keys_by_bytes(self, store):
        """Keys are in the order of their UTF-8 bytes, even around a `/`."""
        keys = sorted(["1", "1-a", "1/x", "10", "A", "_", "a", "é", "\U0001f642"])
        for key in keys:
            store.put("o/" + key, b"")
        seen = [meta.key for meta in list_all(store, "o/")]
        assert sorted(seen) == ["o/" + key for key in keys]
        assert (seen == sorted(seen)) == self.traits.ordered

    @pytest.mark.parametrize("limit", [0, 1001])
    def test_list_limit_is_bounded(self, store, limit):
        """A page has 1 to 1000 objects."""
        with pytest.raises(UsageError, match="limit"):
            store.list("", limit=limit)

    def test_one_winner_of_concurrent_creators(self, store):
        """One of 16 creators wins, and the object has the winner's body."""
        self._one_winner(store, "race", ABSENT)

    def test_one_winner_of_concurrent_replacers(self, store):
        """16 writers expect the same ETag, and one of them wins."""
        if not self.traits.atomic_replace:
            pytest.skip("this server checks an ETag and writes in two steps")
        first = store.put("race", b"first").etag
        self._one_winner(store, "race", IfMatch(etag=ETag(first)))

    def _one_winner(self, store, key, precondition):
        bodies = [b"body %d" % number for number in range(16)]
        with ThreadPoolExecutor(16) as pool:
            outcomes = list(pool.map(lambda body: store.put(key, body, precondition=precondition), bodies))
        winners = [
            body for body, outcome in zip(bodies, outcomes, strict=True) if isinstance(outcome, Written)
        ]
        assert all(isinstance(outcome, Written | Conflict | Unknown) for outcome in outcomes)
        assert [store.get(key).body] == winners
