"""A mirror shows each version in another catalog or format, after commits of every kind, and never delays a commit."""

from dataclasses import replace

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.maintenance.rollback import rollback
from s3notify_platform.source.build import build
from s3notify_platform.table.mirrors import MIRRORS, Mirrored
from s3notify_platform.table.mirrors.symlink_manifest import SymlinkManifest
from tests.support.ingested import Place
from tests.support.servers import S3Server
from tests.support.toy_mirror import TOY, ToyMirror


@pytest.fixture
def place(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setitem(MIRRORS, "toy", TOY)
    monkeypatch.setattr(ToyMirror, "tables", {})
    made = Place(ministack)
    made.source = replace(made.source, location=replace(made.source.location, mirror="toy"))
    return made


@pytest.mark.server
def test_every_version_is_shown(place: Place) -> None:
    """Otherwise a mirror would miss the versions of batches or of rollbacks."""
    (url,) = {f"s3://{place.store.config.bucket}/{place.source.table().layout.prefix}"}
    place.put("a", 1)
    place.run("1")
    first = ToyMirror.tables[url]
    place.put("b", 2)
    place.run("2")
    assert ToyMirror.tables[url] == (first[0] + 1, first[1] + 1)
    rollback(place.source, first[0])
    assert ToyMirror.tables[url] == (first[0] + 2, first[1])


@pytest.mark.server
def test_failing_mirror_does_not_delay_commits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a version would not be committed, or its rows would never appear in the mirror."""
    with monkeypatch.context() as broken:
        broken.setattr(ToyMirror, "fails", True)
        place.put("a", 1)
        place.run("1")
    assert ToyMirror.tables == {}
    place.put("b", 2)
    place.run("2")
    ((_, rows),) = ToyMirror.tables.values()
    assert rows == len(place.values()) == 2


@pytest.mark.server
def test_symlink_manifest_lists_exactly_the_files_of_the_newest_version(place: Place) -> None:
    """Otherwise engines that read the list would show other rows than the table has."""
    location = replace(place.source.location, mirror="symlink")
    place.source = replace(place.source, location=location)
    for batch in ("1", "2"):
        place.put("a", int(batch))
        place.put(f"b{batch}", 7)
        place.run(batch)
    table = place.source.table()
    found = place.store.get(table.layout.symlinks)
    prefix = f"s3://{place.store.config.bucket}/"
    keys = [line.removeprefix(prefix) for line in found.body.decode().splitlines()]
    assert {*keys} == {table.layout.file(pack.path) for pack in place.snapshot().packs.values()}


@pytest.mark.server
def test_commands_update_the_mirror(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the list would name files that an erasure has removed."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    place.source = replace(place.source, location=replace(place.source.location, mirror="symlink"))
    place.put("a", 1)
    place.put("b", 2)
    place.run("1")
    place.store.delete("raw/a")
    config = place.store.config
    given = ("--bucket", config.bucket, "--endpoint-url", str(config.endpoint_url), "--slot-count", "4")
    erased = ("erase", "raw/a", "--name", "orders", "--prefix", "raw/", "--yes", "--mirror", "symlink")
    assert "rows and 0 rejects" in CliRunner().invoke(main, [*erased, *given]).output
    shown = place.store.get(place.source.table().layout.symlinks).body.decode()
    live = [pack.path for pack in place.snapshot().packs.values()]
    assert [line.rpartition("/data/")[2] for line in shown.split()] == [
        path.rpartition("data/")[2] for path in sorted(live)
    ]


@pytest.mark.server
def test_slow_writer_does_not_show_an_earlier_version(place: Place) -> None:
    """Otherwise a late writer would replace the list of a later version."""
    place.source = replace(place.source, location=replace(place.source.location, mirror="symlink"))
    place.put("a", 1)
    place.run("1")
    slow = place.snapshot()
    place.put("b", 2)
    place.run("2")
    table = place.source.table()
    before = place.store.get(table.layout.symlinks)
    store, layout = table.reader.store, table.layout
    SymlinkManifest().show(Mirrored(url=table.url, store=store, layout=layout, snapshot=slow))
    assert place.store.get(table.layout.symlinks) == before


def test_symlink_manifest_refuses_deletion_vectors() -> None:
    with pytest.raises(UsageError, match="leave out overwrites: vectors"):
        build({"name": "orders", "bucket": "b", "mirror": "symlink", "overwrites": "vectors"})


def test_unknown_mirror_is_refused() -> None:
    with pytest.raises(UsageError, match="mirror='hudi': use one of symlink"):
        build({"name": "orders", "bucket": "b", "mirror": "hudi"})
