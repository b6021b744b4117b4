"""Help pages: their size, their headings, and the words of their arguments."""

from collections.abc import Iterator
from pathlib import Path as Folder
from typing import Final

import click
import pytest
from click.testing import CliRunner

from s3notify_platform.cli.help_pages import (
    CONNECTION,
    DYNAMODB,
    HEADINGS,
    HELP_ALL,
    OPTIONS,
    PLACE,
    SettingOption,
)
from s3notify_platform.cli.main import main
from s3notify_platform.source.settings import SETTINGS

Path = tuple[str, ...]

COLUMNS: Final = 80
SCREENS: Final = 2 * 48
"""Lines of two usual screens."""

ARGUMENTS: Final = ("NAME", "TOPIC", "KEY", "COLUMNS")
"""The metavars of arguments, in the order in which a command may have them."""


def commands(group: click.Group, at: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    yield at, group
    context = click.Context(group)
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*at, name))
        else:
            yield (*at, name), command


ALL: Final = dict(commands(main))


def names_of(paths: Path) -> str:
    return " ".join(paths) or "s3notify"


def page(path: Path, flag: str) -> list[str]:
    ran = CliRunner(env={"COLUMNS": str(COLUMNS)}).invoke(main, [*path, flag], prog_name="s3notify")
    assert ran.exit_code == 0, ran.output
    return ran.output.splitlines()


def has_rare(command: click.Command) -> bool:
    return any(getattr(parameter, "rare", False) for parameter in command.params)


@pytest.mark.parametrize("path", ALL, ids=names_of)
def test_no_line_is_wider_than_a_terminal(path: Path) -> None:
    for flag in ("--help", HELP_ALL)[: 1 + has_rare(ALL[path])]:
        assert [line for line in page(path, flag) if len(line) > COLUMNS] == []


@pytest.mark.parametrize("path", ALL, ids=names_of)
def test_every_page_fits_two_screens(path: Path) -> None:
    """`ingest` has more than 90 options: nobody would read a page with all of them."""
    assert len(page(path, "--help")) <= SCREENS


def test_help_all_shows_every_option() -> None:
    for path, command in ALL.items():
        if has_rare(command):
            text = "\n".join(page(path, HELP_ALL))
            flags = [p.opts[0] for p in command.params if isinstance(p, click.Option) and not p.hidden]
            assert [flag for flag in flags if f" {flag}" not in text] == [], path


def test_help_says_that_there_are_more_options() -> None:
    text = " ".join(" ".join(page(("ingest",), "--help")).split())
    rare = sum(getattr(parameter, "rare", False) for parameter in ALL["ingest",].params)
    assert f"--help-all shows {rare} more options" in text
    assert "more options" not in " ".join(page(("ingest",), HELP_ALL))


def test_ingest_still_has_an_option_for_every_setting() -> None:
    found = {parameter.name for parameter in ALL["ingest",].params}
    assert SETTINGS.keys() <= found


@pytest.mark.parametrize("flag", ["--help", HELP_ALL])
def test_connection_options_stand_last(flag: str) -> None:
    """Otherwise users would have to read the options for the connection, which rarely change, before the options that
    vary from call to call.
    """
    found = page(("ingest",), flag)
    headings = [line.removesuffix(":") for line in found if line.removesuffix(":") in HEADINGS]
    assert headings == [heading for heading in HEADINGS if heading in headings]
    assert headings[0] == OPTIONS
    assert headings[-1] in (CONNECTION, DYNAMODB)
    assert HEADINGS[-3:] == (PLACE, CONNECTION, DYNAMODB)


def test_a_name_in_the_yaml_replaces_the_connection_options() -> None:
    """Otherwise the help page of a command with NAME or KEY would hide its own options among options that the YAML
    gives. `doctor` and `ingest` are exceptions, because both commands also run without a YAML.
    """
    for path, command in ALL.items():
        arguments = {p.name for p in command.params if isinstance(p, click.Argument)}
        by_yaml = arguments & {"name", "names", "key", "keys"} or path[:1] == ("topics",)
        if by_yaml and path not in {("doctor",), ("ingest",), ("init",)}:
            shown = [
                p.name
                for p in command.params
                if isinstance(p, SettingOption) and not p.rare and p.heading in (PLACE, CONNECTION, DYNAMODB)
            ]
            assert shown == [], path


def test_every_command_stands_below_a_heading() -> None:
    found = page((), "--help")
    assert "Other:" not in found, "name the new command in `SECTIONS` of cli/main.py"
    assert {"Start:", "Run:", "Look:", "Repair:", "Change a table:", "Delete:"} <= {*found}
    below = found[found.index("Delete:") + 1 :][:3]
    assert [line.split()[0] for line in below] == ["vacuum", "erase", "remove"]
    below = found[found.index("Change a table:") + 1 :][:3]
    assert [line.split()[0] for line in below] == ["table", "schema", "tag"]


def test_arguments_have_the_same_order_and_words_in_every_command() -> None:
    """Otherwise users would have to look up the arguments of each command, or would give a key where the command
    expects a name. A command for objects takes only KEY, and has the option `--name`.
    """
    for path, command in ALL.items():
        arguments = [p for p in command.params if isinstance(p, click.Argument)]
        words = [p.make_metavar(click.Context(command)).strip("[].") for p in arguments]
        assert words == [word for word in ARGUMENTS if word in words], path
        if "KEY" in words and "TOPIC" not in words:
            assert words == ["KEY"], path
            assert "--name" in {flag for p in command.params for flag in p.opts}, path
        assert not {"--key", "--keys"} & {flag for p in command.params for flag in p.opts}, path


def test_every_command_says_what_it_does() -> None:
    """The list of commands must have one sentence for each command, and must show it completely."""
    for path, command in ALL.items():
        if path:
            text = command.get_short_help_str(200)
            assert text.endswith("."), path
            assert not text.endswith("..."), path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--max-objects", "many"], "--max-objects='many': give a whole number"),
        (["--max-objects", "1.5"], "--max-objects='1.5': give a whole number"),
        (["--max-objects", "0"], "--max-objects=0: must be at least 1"),
        (["--max-seconds", "soon"], "--max-seconds='soon': give a number"),
        (["--list-seconds", "soon"], "--list-seconds"),
        (["--every", "soon"], "--every"),
        (["--signals", "all"], "--signals='all': use one of slots, root"),
        (["--slot-count", "many"], "--slot-count='many': give a whole number"),
        (["--requester-pays", "-o", "requester_pays=no"], "requester_pays='no': give true or false"),
    ],
)
def test_a_wrong_value_is_refused_with_the_name_of_its_option(given: list[str], said: str) -> None:
    ran = CliRunner(env={"COLUMNS": "250"}).invoke(main, ["ingest", "orders", "--bucket", "b", *given])
    assert ran.exit_code == (1 if "-o" in given else 2), ran.output
    assert said in ran.output


@pytest.mark.parametrize(
    ("in_yaml", "flags", "pays"),
    [
        ('"false"', [], False),
        ("false", [], False),
        ('"true"', [], True),
        ("true", ["--no-requester-pays"], False),
        ("false", ["--requester-pays"], True),
    ],
)
def test_a_flag_overrides_the_yaml(tmp_path: Folder, in_yaml: str, flags: list[str], pays: bool) -> None:
    """The text "false" in the YAML must not count as true."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "defs.yaml").write_text(
        "type: s3notify_platform.S3NotifyComponent\n"
        f"attributes: {{name: orders, bucket: b, s3: {{requester_pays: {in_yaml}}}}}\n"
    )
    context = ALL["ingest",].make_context("ingest", ["orders", "--defs", str(tmp_path), *flags])
    assert context.params["requester_pays"] is pays
