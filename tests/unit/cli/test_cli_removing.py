"""`s3notify vacuum --dry-run` and `s3notify erase`: what is removed is said, or refused, before anybody is asked."""

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from s3notify_platform.cli import main
from s3notify_platform.clock import SYSTEM_CLOCK
from s3notify_platform.ports import list_all
from s3notify_platform.table import vacuum
from tests.support.ingested import Place
from tests.support.servers import S3Server

pytestmark = pytest.mark.server

Run = Callable[..., Result]


@pytest.fixture
def place(ministack: S3Server, monkeypatch: pytest.MonkeyPatch) -> Place:
    """An object that was ingested twice: a superseded commit."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    made = Place(ministack)
    for batch in ("1", "2"):
        made.put("a", int(batch))
        made.run(batch)
    return made


@pytest.fixture
def run(place: Place) -> Run:
    config = place.store.config
    options = ["--bucket", config.bucket, "--endpoint-url", str(config.endpoint_url), "--slot-count", "4"]
    return lambda *given, text=None: CliRunner().invoke(main, [*given, *options], input=text)


def test_vacuum_says_what_it_would_remove(place: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, counts and bytes, as lines and as JSON; nothing is removed, and the pass after it removes just that."""
    month_ms = 30 * 86_400_000
    monkeypatch.setattr(vacuum, "_server_now_ms", lambda *_: SYSTEM_CLOCK.wall_ms() + month_ms)
    before = {meta.key: meta.size for meta in list_all(place.store, "")}
    shown = run("vacuum", "orders", "--dry-run")
    assert shown.exit_code == 0, shown.output
    found = json.loads(run("vacuum", "orders", "--dry-run", "--json").stdout)
    assert {meta.key for meta in list_all(place.store, "")} == before.keys()
    names = found["names"]
    assert (found["dry_run"], found["commits_removed"]) == (True, 1)
    *lines, last = shown.stdout.splitlines()
    assert lines == names
    assert "would remove 1 commits" in last
    assert f"{sum(before[name] for name in names)} bytes" in last
    done = run("vacuum", "orders")
    assert done.stdout == last.replace("would remove", "removed").replace("would keep", "kept") + "\n"
    assert {meta.key for meta in list_all(place.store, "")} == before.keys() - {*names}


def test_erase_refuses_before_it_asks(place: Place, run: Run) -> None:
    """An object that is there, or is none of the source; one that is gone is asked about."""
    for key, said in (("raw/a", "delete the object first"), ("other/a", "reads keys below 'raw/'")):
        refused = run("erase", key, "--name", "orders", "--prefix", "raw/", text="y\n")
        assert refused.exit_code == 1
        assert said in refused.stderr
        assert "for good?" not in refused.output
    place.store.delete("raw/a")
    asked = run("erase", "raw/a", "--name", "orders", "--prefix", "raw/", text="n\n")
    assert (asked.exit_code, "for good?" in asked.output) == (1, True)
    assert run("erase", "raw/a", "--name", "orders", "--prefix", "raw/", text="y\n").exit_code == 0
