"""Texts from outside reach a terminal without control characters."""

import json

import click
import pytest
from click.testing import CliRunner

from s3notify_platform.cli import printing
from s3notify_platform.cli.main import main
from s3notify_platform.kernel.errors import UsageError

HOSTILE = "a\x1b[2Jb\x9b31mc\u202ed\r\x07e\udc80f"
SHOWN = r"a\u001b[2Jb\u009b31mc\u202ed\r\u0007e\udc80f"


@pytest.mark.parametrize("err", [False, True])
def test_lines_are_escaped(capsys, err):
    """Line ends must stay unchanged."""
    printing.say(f"{HOSTILE}\nnext", err=err)
    captured = capsys.readouterr()
    assert (captured.err if err else captured.out) == f"{SHOWN}\nnext\n"


@pytest.mark.parametrize("width", [40, 80])
def test_a_paragraph_is_wrapped_and_its_words_stay_whole(capsys, monkeypatch, width):
    """Otherwise a terminal would break a line within a name, and nobody could copy the name. A pipe gets one line, so
    that programs can search it.
    """
    arn = "arn:aws:sqs:eu-central-1:123456789012:s3notify-orders-0123456789ab"
    text = f"  + SQS queue {arn!r}, which keeps messages for 14 days (is\x1b missing)"
    monkeypatch.setenv("COLUMNS", str(width))
    printing.say_wrapped(text)
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("  + SQS queue")
    assert all(line.startswith("      ") for line in others)
    assert repr(arn) in first + others[0]
    lines = [line for line in (first, *others) if arn not in line or width == 80]
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join((first, *others)).split()) == text.replace("\x1b", "\\u001b").strip()
    monkeypatch.delenv("COLUMNS")
    printing.say_wrapped(text)
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_commands_and_keys_stay_whole(capsys, monkeypatch):
    """A terminal would run the first half of a broken command as a command."""
    command = "`s3notify quarantine retry --all --name orders`"
    monkeypatch.setenv("COLUMNS", "50")
    printing.say_wrapped(
        f"{printing.unbroken('a key with spaces')} cannot be read until {command}\n  and so on"
    )
    assert capsys.readouterr().out.splitlines() == [
        "a key with spaces cannot be read until",
        f"    {command}",
        "  and so on",
    ]


def test_tables_are_escaped(capsys, monkeypatch):
    """Line ends are escaped too, since they would break rows."""
    monkeypatch.setenv("COLUMNS", "200")
    printing.print_table(("Key",), [[f"{HOSTILE}\n"], ["[bold]x"]])
    out = capsys.readouterr().out
    assert SHOWN + r"\n" in out
    assert "[bold]x" in out
    assert "\x1b[2J" not in out


def test_escaped_json_stays_json(capsys):
    """Escaped documents and lines must still be valid JSON."""
    printing.print_json({"key": HOSTILE})
    printing.say(json.dumps({"key": HOSTILE}, ensure_ascii=False))
    document, _, line = capsys.readouterr().out.partition("\n}\n")
    assert json.loads(document + "}") == json.loads(line) == {"key": HOSTILE}
    assert "\x9b" not in document + line


def test_a_pipe_gets_a_message_unchanged(capfd, monkeypatch):
    """Otherwise a user who saves a poison message would get other bytes than the inlet received. On a terminal, the
    message is escaped, because its control characters would change the terminal.
    """
    printing.say_as_received(b"\x1b[2J\n")
    assert capfd.readouterr().out == "\x1b[2J\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    printing.say_as_received(b"\x1b[2J\n")
    assert capfd.readouterr().out == "\\u001b[2J\n"


@pytest.mark.parametrize("kind", [UsageError, click.ClickException])
def test_errors_are_escaped(monkeypatch, kind):
    """The text of an error may contain an answer of the bucket. If the answer's control characters were printed, a
    hostile server could change the user's terminal.
    """

    def fail(*_, **__):
        raise kind(f"refused: {HOSTILE}")

    monkeypatch.setattr("s3notify_platform.cli.common.SourcePlace.location", fail)
    ran = CliRunner().invoke(main, ["signal", "k", "--bucket", "b", "--name", "orders"])
    assert ran.exit_code == 1
    assert ran.stderr == f"Error: refused: {SHOWN}\n"


def test_tracebacks_are_escaped(capsys):
    printing.say_traceback(ValueError(HOSTILE))
    assert f"ValueError: {SHOWN}" in capsys.readouterr().err


def test_a_progress_bar_is_shown_only_on_a_terminal(capsys, monkeypatch):
    """Otherwise the log of a cron job would fill with control characters. If the bar dropped items, a maintenance task
    would leave out the work for these items.
    """
    assert list(printing.track(iter("abc"), 3, "removing")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert list(printing.track(iter("abc"), 3, "removing")) == ["a", "b", "c"]
    assert "removing" in capsys.readouterr().err
