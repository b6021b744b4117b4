"""README and guide: a test runs every block. The commands and links in these documents exist, and the tables of options
agree with the code.
"""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from s3notify_platform.cli.guide import pages, summary
from s3notify_platform.cli.main import main
from s3notify_platform.kernel.ports import Written
from s3notify_platform.kernel.slots import slot_of
from s3notify_platform.protocols.ack_chain import Acked, AlreadyAcked
from s3notify_platform.protocols.keyspace import Publisher, Put
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.s3 import S3ObjectStore
from tests.support import option_tables
from tests.support.documents import BUCKET, NAMED, Place, block, blocks, documents
from tests.support.only import PROJECT
from tests.support.servers import running_ministack

LINES_OF_README = 130

_COMMAND = re.compile(r"`(s3notify [^`]*)`")
_LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]+))?\)")


def typed() -> Iterator[tuple[str, str]]:
    """Yields each `s3notify` command in the documents, with the document's name."""
    for name, text in documents().items():
        for command in _COMMAND.findall(text):
            yield name, " ".join(command.split())
        for each in blocks(text):
            if each.language == "sh":
                for line in each.body.replace("\\\n", " ").splitlines():
                    for part in re.split(r"&&|\|", line.split(" #")[0]):
                        if part.strip().startswith("s3notify "):
                            yield name, part.strip()


@pytest.fixture(scope="module")
def landing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A separate server, because the documents use the same bucket names for all tests."""
    with running_ministack(tmp_path_factory.mktemp("server")) as server:
        yield Place.of(server, tmp_path_factory.mktemp("here"))


@pytest.fixture
def place(landing: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place in which the documents' blocks run. The test's process has the environment of this place, and works in
    its folder.
    """
    for name, value in landing.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(landing.folder)
    return landing


def test_each_name_of_a_block_is_known() -> None:
    """Otherwise no test would run a block whose name is misspelled."""
    named = {each.name for text in documents().values() for each in blocks(text)} - {""}
    assert named == NAMED


def test_commands_and_their_options_exist() -> None:
    """Otherwise a reader who types a documented command would get a usage error."""
    wrong = []
    for document, line in typed():
        words = [word for word in shlex.split(line.replace("…", "X")) if word != ">"][1:]
        command: click.Command = main
        context = click.Context(main)
        while words and isinstance(command, click.Group):
            if (found := command.get_command(context, words[0])) is None:
                break
            command, words = found, words[1:]
            context = click.Context(command, parent=context)
        else:
            known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            if strange := given - known - {"--help", "--help-all"}:
                wrong.append((document, line, strange))
            continue
        if words[0].isupper() or words[0].startswith(("-", "[")):
            continue
        wrong.append((document, line, {words[0]}))
    assert wrong == []


def test_messages_in_the_guide_are_those_of_the_code() -> None:
    """Otherwise a person who looks up a message in the guide would not find it."""
    texts = "\n".join(_texts(PROJECT.parent / "s3notify_platform"))
    table = documents()["s3notify_platform/guide/operating.md"].split("## When it says")[1]
    quoted = [
        message
        for line in table.splitlines()
        if line.startswith("| `")
        for message in re.findall(r"`([^`]*)`", line.split("|")[1])
        if " " in message
    ]
    assert len(quoted) > 5
    assert [message for message in quoted if message not in texts] == []


def _texts(package: Path) -> Iterator[str]:
    """The texts in the code, with … in place of values that are filled in."""
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.JoinedStr(values=values):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…" for part in values
                    )
                case ast.Constant(value=str(text)):
                    yield text


def test_links_lead_to_files() -> None:
    for name, text in documents().items():
        for target, heading in _LINK.findall(text):
            if not target.startswith("http"):
                page = (PROJECT.parent / name).parent / target if target else PROJECT.parent / name
                assert page.exists(), (name, target)
                headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE) if heading else []
                slugs = {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
                assert {heading} - {""} <= slugs, (name, target, heading)


def test_the_readme_is_short_and_links_each_page() -> None:
    readme = documents()["README.md"]
    assert len(readme.splitlines()) <= LINES_OF_README
    assert {f"s3notify_platform/guide/{topic}.md" for topic in pages()} <= {
        target for target, _ in _LINK.findall(readme)
    }


def test_tables_of_options_are_those_of_the_code() -> None:
    assert option_tables.PAGE.read_text() == option_tables.page(), "run `poe options`"


def test_the_guide_is_shown_by_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a user who has only the installed package could not find or read a page of the guide. After a mistyped
    topic, the user must see the existing topics.
    """
    monkeypatch.chdir(tmp_path)
    listed = CliRunner().invoke(main, ["guide"]).output
    for topic, text in pages().items():
        assert f"{topic} " in listed
        assert summary(text) in listed
        assert CliRunner().invoke(main, ["guide", topic]).output.strip() == text.strip()
    unknown = CliRunner().invoke(main, ["guide", "cooking"])
    assert unknown.exit_code == 1
    assert "operating" in unknown.output


@pytest.mark.server
def test_protocols_work_alone(place: Place) -> None:
    """Otherwise a user who copies the guide's block would get an error instead of acknowledgements or a cached object.
    The block runs ack chains, chains in the npm package's table, and the causal cache.
    """
    place.client("dynamodb").create_table(
        TableName="acks",
        KeySchema=[{"AttributeName": "tagID", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "tagID", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    publisher = Publisher(S3ObjectStore(S3Config(bucket=BUCKET)), prefix="_s3notify/orders/keyspace/")
    publisher.publish([Put(key="raw/orders/1.jsonl", body=b"{}")])
    names: dict[str, Any] = {}
    exec(block("protocols"), names)
    assert names["cache"].try_get("raw/orders/1.jsonl").body == b"{}"
    assert isinstance(names["chains"].stamp_children(names["chain"], ["report"]), AlreadyAcked)
    assert isinstance(names["shared"].stamp("job", names["b"]), Acked)


@pytest.mark.server
def test_publishing(place: Place) -> None:
    """Otherwise a user who copies the guide's block would lose objects, or would write objects that runs do not notice,
    because the signals of their slots have not moved.
    """
    (place.folder / "big.parquet").write_bytes(b"large" * 1000)
    names: dict[str, object] = {}
    exec(block("publishing"), names)
    assert isinstance(names["outcome"], Written)
    written = place.keys("raw/orders/")
    assert sorted(written) == sorted(
        ["raw/orders/big.parquet", *(f"raw/orders/{number}.jsonl" for number in range(1, 99))]
    )
    signalled = place.keys("_s3notify/orders/keyspace/")
    assert set(signalled) == {f"_s3notify/orders/keyspace/{name}" for name in ("_", *map(slot_of, written))}


def test_the_pinned_dagster_is_the_tested_one() -> None:
    """A project with a newer Dagster than dagster-pyspark needs cannot be installed, so each page must name the pin."""
    (tested,) = re.findall(
        r"^dagster==(\S+)", (PROJECT.parent / ".ci/constraints.txt").read_text(), re.MULTILINE
    )
    pins = {
        path: {*re.findall(r"(?:create-dagster@|dagster==)([\d.]*\d)", text)}
        for path, text in documents().items()
    }
    assert {path: found for path, found in pins.items() if found} == {
        "README.md": {tested},
        "s3notify_platform/guide/dagster.md": {tested},
    }
