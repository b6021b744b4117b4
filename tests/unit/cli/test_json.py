"""The output of every reading command, on a real server: with `--json`, one JSON document, or one JSON document on each
line; without, lines that fit a terminal.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from s3notify_platform.channels.inlets.poison import PoisonStore
from s3notify_platform.cli.main import main
from s3notify_platform.engine.driver import Ingest
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.notification_queue import Event, TopicSettings
from tests.support.ingested import Place
from tests.support.local_jobs import LocalJobs
from tests.support.servers import S3Server

READING: Mapping[tuple[str, ...], list[str]] = {
    ("changes",): ["orders", "--since", "0"],
    ("doctor",): [],
    ("explain",): ["raw/good"],
    ("history",): ["orders"],
    ("inlet", "poison"): [],
    ("quarantine", "list"): ["orders"],
    ("quarantine", "show"): ["raw/bad"],
    ("rows",): ["orders", "--slot", str(slot_of("raw/good", 4))],
    ("schema", "show"): ["orders"],
    ("status",): ["orders"],
    ("table", "check"): ["orders"],
    ("table", "show"): ["orders"],
    ("topics", "dead"): ["orders"],
    ("topics", "dump"): ["orders"],
    ("topics", "list"): [],
    ("topics", "show"): ["orders"],
    ("topics", "stats"): [],
}
"""The commands that read, with arguments for the test."""

OTHERS = {
    "backfill", "deliver", "demo", "dev", "erase", "guide", "ingest", "init", "pause", "reconcile", "remove", "resume",
    "serve-notifications", "signal", "vacuum", "units", "warm",
    "inlet http", "inlet sqs", "quarantine retry", "schema rollback", "schema set", "tag", "table compact",
    "table confirm", "table forget", "table migrate", "table put-back", "table rollback",
    "topics create", "topics delete", "topics pause", "topics purge", "topics redrive",
    "topics resume", "topics update",
}  # fmt: skip
"""The commands that change something, or run until a signal."""


def commands(group: click.Group, at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*at, name))
        else:
            yield (*at, name)


def test_every_command_is_listed_here() -> None:
    """A new command must be added to `READING` if it takes --json, and to `OTHERS` if it does not."""
    assert {" ".join(command) for command in commands(main)} == OTHERS | {" ".join(c) for c in READING}


@pytest.fixture(scope="module")
def place(ministack: S3Server) -> Place:
    """A table, a topic with an entry, an object in quarantine, and a poison message."""
    made = Place(ministack)
    made.put("good", 1, 2)
    made.store.put("raw/bad", b"nothing of this is JSON\n")
    made.run("1")
    queue = made.source.location.queue()
    queue.topics.create("orders", TopicSettings(bucket=made.store.config.bucket, prefix="raw/", slots=4))
    queue.push("orders", Event(key="raw/waiting"))
    PoisonStore(queue).keep(b"\xff", origin="sqs", reason="no JSON")
    return made


@pytest.mark.server
@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_reading_command_prints_json(
    place: Place, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    ran = run(place, monkeypatch, command, *READING[command], "--json")
    assert ran.exit_code == 0, ran.output
    found = _values(ran.stdout)
    assert found, "the command has something to print"
    assert all(isinstance(value, dict | list) for value in found)


OTHER_PROSE = [
    (("explain",), ["raw/bad"]),
    (("explain",), ["raw/waiting"]),
    (("quarantine", "list"), ["orders", "--objects"]),
    (("quarantine", "show"), ["raw/good"]),
    (("status",), ["clicks"]),
]
UNBROKEN = ("{", "key: ", "data file: ")
"""How lines begin that must stay whole, so that programs can read them, and people can copy them."""


@pytest.mark.server
@pytest.mark.parametrize(("command", "given"), [*READING.items(), *OTHER_PROSE], ids=str)
def test_lines_fit_a_terminal(
    place: Place, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], given: list[str]
) -> None:
    """Otherwise a terminal would break a sentence within a word."""
    monkeypatch.setenv("COLUMNS", "80")
    ran = run(place, monkeypatch, command, *given)
    assert ran.output
    assert not isinstance(ran.exception, Exception) or isinstance(ran.exception, SystemExit), ran.exception
    lines = [line for line in ran.output.splitlines() if not line.startswith(UNBROKEN)]
    assert [line for line in lines if len(line) > 80] == []


def run(place: Place, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], *given: str) -> Result:
    """Runs the command with options that locate the source."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    config = place.store.config
    located = ["--bucket", config.bucket, "--endpoint-url", str(config.endpoint_url)]
    options = {option for parameter in _of(command).params for option in parameter.opts}
    located += [arg for name, value in (("--slot-count", "4"), ("--name", "orders"), ("--prefix", "raw/"))
                if name in options for arg in (name, value)]  # fmt: skip
    return CliRunner().invoke(main, [*command, *given, *located])


def _of(command: tuple[str, ...]) -> click.Command:
    found: Any = main
    for name in command:
        found = found.get_command(click.Context(found), name)
    assert isinstance(found, click.Command)
    return found


def _values(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines()]


@pytest.mark.server
@pytest.mark.parametrize("command", [("rows", "orders"), ("changes", "orders", "--since", "0")], ids=" ".join)
def test_numbers_that_json_lacks_are_texts(
    ministack: S3Server, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Otherwise strict readers of JSON would refuse the line. Numbers in lists and structs are covered."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    place, kind = Place(ministack), pa.struct([("x", pa.float64()), ("y", pa.list_(pa.float32()))])
    place.store.put("raw/a", b'{"a": {"x": NaN, "y": [Infinity, -Infinity, 1.5, null]}}\n')
    Ingest(jobs=LocalJobs(source=place.source, kind=kind), source=place.source).run(
        place.source.location.all_slots(), batch="1"
    )
    given = ["--bucket", place.store.config.bucket, "--endpoint-url", str(place.store.config.endpoint_url)]
    ran = CliRunner().invoke(main, [*command, *given, "--slot-count", "4"])
    assert ran.exit_code == 0, ran.output

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    (line,) = ran.stdout.splitlines()
    found = json.loads(line, parse_constant=refuse)
    assert found["a"] == {"x": "NaN", "y": ["Infinity", "-Infinity", 1.5, None]}
    shown = CliRunner().invoke(main, [command[0], "--help"]).stdout
    assert '"NaN", "Infinity" and "-Infinity"' in " ".join(shown.split())
