"""Files, streams and copies that do not fit into memory, written by a publisher without a queue."""

import io
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.kernel.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from s3notify_platform.kernel.limits import MAX_PARTS, MAX_PUBLISHED_BYTES, PARTS_BYTES
from s3notify_platform.kernel.ports import ABSENT, Conflict, CopyRange, IfMatch, Unknown, Written
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.keyspace import Publisher, uploads
from s3notify_platform.stores.counting import CountingStore
from s3notify_platform.stores.memory import MemoryObjectStore
from tests.support.clocks import HandClock
from tests.support.faults import CrashedError, Fault, FaultyStore, at, never

MIB = 1 << 20
KS = "ks/"


class Pieces(io.RawIOBase):
    """A stream like a socket: it returns less than requested, and fails at `dies_at`."""

    def __init__(self, body, dies_at=None):
        self.body, self.place, self.dies_at = body, 0, dies_at

    def read(self, size):
        if self.dies_at is not None and self.place >= self.dies_at:
            raise ConnectionResetError("the other side is gone")
        piece = self.body[self.place : self.place + min(size, 3 * MIB + 1)]
        self.place += len(piece)
        return piece


class Site:
    def __init__(self, schedule=never, parallelism=4):
        self.there = MemoryObjectStore(buckets={"other": MemoryObjectStore()})
        self.other = self.there._buckets["other"]
        self.counted = CountingStore(self.there)
        self.faulty = FaultyStore(self.counted, schedule)
        self.publisher = Publisher(self.faulty, prefix=KS, clock=HandClock(), parallelism=parallelism)

    def signalled(self, key):
        return self.there.head(f"{KS}{slot_of(key)}") is not None

    def uploads(self):
        return len(self.there._uploads)


@pytest.fixture
def body():
    return bytes(range(256)) * (20 * MIB // 256) + b"end"


@pytest.mark.parametrize("parallelism", [1, 4])
def test_a_stream_becomes_the_object(body, parallelism):
    """Otherwise bytes would be lost or out of order if a stream returns short pieces."""
    site = Site(parallelism=parallelism)
    written = site.publisher.put_stream("k", Pieces(body), metadata={"a": "b"})
    found = site.there.get("k")
    assert isinstance(written, Written)
    assert (found.body == body, found.meta.etag, found.meta.metadata["a"]) == (True, written.etag, "b")
    assert site.signalled("k")
    assert site.uploads() == 0


def test_a_file_costs_only_the_documented_requests(tmp_path, body):
    """Otherwise a file would cost more requests than documented."""
    (tmp_path / "file").write_bytes(body)
    site = Site()
    assert isinstance(site.publisher.put_file("k", tmp_path / "file"), Written)
    assert site.there.get("k").body == body
    assert site.counted.counts == {"UPLOAD": 1 + 3 + 1, "PUT": 2}


@pytest.mark.parametrize("size", [None, 5])
def test_a_small_stream_is_written_by_one_put(size):
    site = Site()
    assert isinstance(site.publisher.put_stream("k", io.BytesIO(b"small"), size=size), Written)
    assert isinstance(site.publisher.put_stream("empty", io.BytesIO()), Written)
    assert site.counted.counts == {"PUT": 6}
    assert site.there.get("empty").body == b""


@pytest.mark.parametrize("precondition", [ABSENT, IfMatch(etag="other")])
def test_a_failed_precondition_writes_nothing(body, precondition):
    """Otherwise an upload would be left over, or a signal would move, although nothing was written."""
    site = Site()
    site.there.put("k", b"old")
    assert site.publisher.put_stream("k", io.BytesIO(body), precondition=precondition) == Conflict()
    assert site.there.get("k").body == b"old"
    assert not site.signalled("k")
    assert site.uploads() == 0


def test_the_precondition_is_checked_at_the_end(body):
    """Otherwise an upload would overwrite an object that another writer created while its parts were sent."""
    site = Site()

    def schedule(call):
        if call.method == "complete_upload":
            site.there.put("k", b"another's")
        return Fault.NONE

    site.faulty.schedule = schedule
    assert site.publisher.put_stream("k", io.BytesIO(body), precondition=ABSENT) == Conflict()
    assert site.there.get("k").body == b"another's"


@pytest.mark.parametrize("method", ["send_part", "complete_upload", "abort_upload"])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.THROTTLED, Fault.LATE])
@pytest.mark.parametrize("precondition", [None, ABSENT])
def test_requests_with_lost_answers_are_repeated_or_checked(body, method, fault, precondition):
    """Otherwise a lost answer would fail the upload, or its outcome would be guessed."""
    if method == "abort_upload":
        # Only a failed upload is aborted, so this upload must fail.
        site = Site(at(method, fault))
        site.there.put("k", b"old")
        assert site.publisher.put_stream("k", io.BytesIO(body), precondition=ABSENT) == Conflict()
    else:
        site = Site(at(method, fault), parallelism=1)
        written = site.publisher.put_stream("k", io.BytesIO(body), precondition=precondition)
        assert isinstance(written, Written)
        assert site.there.get("k").body == body
    site.faulty.settle()
    assert site.uploads() == 0


def test_a_completion_that_stays_in_doubt_is_unknown_and_aborted(body):
    """Otherwise an object that may have been written would not be signalled, or the upload would be left over."""
    site = Site()

    def schedule(call):
        if call.method == "head":
            site.there.put("k", b"another's")
        return Fault.LOST if call.method == "complete_upload" else Fault.NONE

    site.faulty.schedule = schedule
    outcome = site.publisher.put_stream("k", io.BytesIO(body), precondition=ABSENT)
    assert isinstance(outcome, Unknown)
    assert site.there.get("k").body == b"another's"
    assert site.signalled("k")
    assert site.uploads() == 0


def test_an_unavailable_store_fails_the_upload(body):
    """Otherwise an unfinished upload would stay in the store if its parts cannot be sent."""
    site = Site(lambda call: Fault.THROTTLED if call.method == "send_part" else Fault.NONE)
    with pytest.raises(UnavailableError):
        site.publisher.put_stream("k", io.BytesIO(body))
    assert site.uploads() == 0
    assert not site.signalled("k")


def test_an_upload_that_another_client_aborts_raises_an_error(body):
    """Otherwise a writer would not learn that nothing was written and that it must begin again."""
    site = Site()

    def schedule(call):
        if call.method == "complete_upload":
            site.there._uploads.clear()
        return Fault.NONE

    site.faulty.schedule = schedule
    with pytest.raises(UnavailableError, match="aborted by another"):
        site.publisher.put_stream("k", io.BytesIO(body))
    assert site.there.head("k") is None


def test_a_stream_that_fails_writes_nothing(body):
    """Otherwise a part of a stream would become an object, or an upload would be left over."""
    site = Site()
    with pytest.raises(ConnectionResetError):
        site.publisher.put_stream("k", Pieces(body, dies_at=12 * MIB))
    assert (site.there.head("k"), site.uploads(), site.signalled("k")) == (None, 0, False)


@pytest.mark.parametrize("said", [0, 5, 21 * MIB, 17 * MIB])
def test_a_wrong_size_is_refused(body, said):
    """Otherwise a file that grew or was cut during the upload would become a wrong object."""
    site = Site()
    with pytest.raises(UsageError, match="bytes"):
        site.publisher.put_stream("k", io.BytesIO(body), size=said)
    assert (site.there.head("k"), site.uploads()) == (None, 0)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda p, tmp: p.put_file("k", tmp / "none"), "none"),
        (lambda p, tmp: p.put_file("k", tmp), "cannot be read"),
        (lambda p, tmp: p.put_stream("k", io.StringIO("text")), "binary"),
        (lambda p, tmp: p.put_stream("k", io.BytesIO(), size=MAX_PUBLISHED_BYTES + 1), "bytes"),
        (lambda p, tmp: p.put_stream("k", io.BytesIO(), size=-1), "bytes"),
        (lambda p, tmp: p.put_stream(f"{KS}k", io.BytesIO(bytes(9 * MIB))), "own"),
        (lambda p, tmp: p.put_stream("k" * 1025, io.BytesIO(bytes(9 * MIB))), "1025 bytes"),
    ],
)
def test_wrong_uploads_are_refused_before_a_request(tmp_path, call, named):
    """Otherwise a wrong call would leave an object or an upload behind."""
    site = Site()
    with pytest.raises(UsageError, match=named):
        call(site.publisher, tmp_path)
    assert (len(site.there._objects), site.uploads()) == (0, 0)


def test_the_store_makes_a_copy(body):
    """Otherwise the bytes of a copy would pass through this process, or the copy would keep metadata that is true only
    of its source.
    """
    site = Site()
    site.other.put("source", body, metadata={"a": "1", "b": "1", "s3notify-expected": "*"})
    written = site.publisher.copy("k", "other", "source", metadata={"b": "2"})
    assert isinstance(written, Written)
    found = site.there.get("k")
    assert (found.body == body, found.meta.metadata["a"], found.meta.metadata["b"]) == (True, "1", "2")
    assert "s3notify-expected" not in found.meta.metadata
    assert site.counted.counts == {"HEAD": 1, "COPY": 1, "PUT": 2}
    assert site.signalled("k")


@pytest.mark.parametrize("precondition", [None, ABSENT])
def test_a_large_or_conditional_copy_is_made_by_parts(monkeypatch, precondition):
    """Otherwise an object that is too large for one COPY could not be copied, or its copy would lack some bytes."""
    monkeypatch.setattr(uploads, "COPIED_AT_ONCE_BYTES", 10)
    monkeypatch.setattr(uploads, "COPIED_PART_BYTES", MIB)
    site = Site()
    site.there.put("source", body := bytes(range(250)) * (2 * MIB // 250 + 5))
    assert isinstance(site.publisher.copy("k", "", "source", precondition=precondition), Written)
    assert site.there.get("k").body == body
    assert site.counted.counts["UPLOAD"] == 1 + 3 + 1
    assert site.publisher.copy("k", "", "source", precondition=ABSENT) == Conflict()


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REFUSED, Fault.THROTTLED])
def test_a_copy_in_doubt_is_checked_by_head(fault):
    site = Site(at("copy", fault))
    site.there.put("source", b"1")
    assert isinstance(site.publisher.copy("k", "", "source"), Written)
    assert site.there.get("k").body == b"1"


def test_another_writers_copy_is_not_taken_for_ours():
    """Otherwise a copy in doubt would be recognised by the writer id of its source, which other copies have, too."""
    site = Site(at("copy", Fault.REFUSED))
    site.publisher.put_stream("source", io.BytesIO(bytes(9 * MIB)))
    site.there.copy("source", "k")
    before = site.there.head("k").metadata
    assert isinstance(site.publisher.copy("k", "", "source"), Written)
    assert site.there.head("k").metadata != before


def test_missing_and_changing_sources_are_refused(monkeypatch):
    site = Site()
    with pytest.raises(NotFoundError, match="gone"):
        site.publisher.copy("k", "other", "gone")
    site.there.put("source", b"1")

    def schedule(call):
        if call.method in ("copy", "send_part"):
            site.there.put("source", b"2")
        return Fault.NONE

    site.faulty.schedule = schedule
    with pytest.raises(ConflictError):
        site.publisher.copy("k", "", "source")
    site.there.put("source", b"1")
    with pytest.raises(ConflictError):
        site.publisher.copy("k", "", "source", precondition=ABSENT)
    assert (site.there.head("k"), site.uploads()) == (None, 0)


def test_an_empty_source_is_copied():
    site = Site()
    site.there.put("source", b"", metadata={"a": "1"})
    assert isinstance(site.publisher.copy("k", "", "source", precondition=ABSENT), Written)
    assert site.there.get("k").body == b""
    assert site.there.head("k").metadata["a"] == "1"


def test_a_killed_writer_leaves_no_partial_object(body):
    """Otherwise an object would exist before all its parts were sent."""
    for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
        for nth in range(5):
            site = Site(lambda call, nth=nth, fault=fault: fault if call.number == nth else Fault.NONE, 1)
            with pytest.raises(CrashedError):
                site.publisher.put_stream("k", io.BytesIO(body))
            there = site.there.get("k")
            assert (there is not None) == (nth == 4 and fault is Fault.CRASH_AFTER)


def test_memory_is_bounded(monkeypatch, body):
    """Otherwise a slow store would make the parts of an upload fill the memory."""
    monkeypatch.setattr(uploads, "PARTS_BYTES", 16 * MIB)
    held, most, lock = [0], [0], threading.Lock()
    site = Site()

    class Watched(Pieces):
        def read(self, size):
            piece = super().read(size)
            with lock:
                held[0] += len(piece)
                most[0] = max(most[0], held[0])
            return piece

    def send(key, upload, number, part):
        etag = MemoryObjectStore.send_part(site.there, key, upload, number, part)
        with lock:
            held[0] -= len(part)
        return etag

    site.there.send_part = send
    site.publisher.put_stream("k", Watched(body * 3), size=3 * len(body))
    assert site.there.get("k").body == body * 3
    assert most[0] <= 16 * MIB


@given(st.integers(min_value=0, max_value=MAX_PUBLISHED_BYTES))
def test_ten_thousand_parts_suffice_for_every_size(size):
    """Otherwise an object would need more than 10,000 parts, or parts of a size that stores refuse."""
    for least in (uploads.PART_BYTES, uploads.COPIED_PART_BYTES):
        part = uploads.part_bytes(size, least)
        assert least <= part <= 5 << 30
        assert part * MAX_PARTS >= size
    assert uploads.part_bytes(100 * MIB, uploads.PART_BYTES) == uploads.PART_BYTES


def test_ten_thousand_growing_parts_suffice():
    sizes = [uploads.growing_part_bytes(number) for number in range(1, MAX_PARTS + 1)]
    assert sum(sizes) > MAX_PUBLISHED_BYTES
    assert sizes == sorted(sizes)
    assert sizes[0] == uploads.PART_BYTES
    assert max(sizes) < 1.2 * (1 << 30)
    assert max(sizes) > PARTS_BYTES


def test_copied_ranges_cover_the_source(monkeypatch):
    site = Site()
    site.there.put("source", bytes(5 * MIB + 1))
    monkeypatch.setattr(uploads, "COPIED_PART_BYTES", MIB)
    source = site.there.source("", "source")
    ranges = list(uploads._copy_parts(source))
    assert ranges[0] == CopyRange(source=source, start=0, size=uploads.part_bytes(5 * MIB + 1, MIB))
    assert sum(part.size for part in ranges) == 5 * MIB + 1
