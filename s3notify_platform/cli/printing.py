"""All printing of commands: no other module prints. Keys, errors and records come from outside, so control characters
are escaped.
"""

import json
import os
import re
import shutil
import sys
import textwrap
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.progress import Progress

T = TypeVar("T")

_WIDE: Final = 100_000
"""The width of an output that is not a terminal."""

_GLUE: Final = "\xa0"
"""Stands for a space at which no line is broken, until the text is printed."""


def shown(text: object) -> str:
    """The text in one line, with JSON escapes in place of control characters."""
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in plain)


def printable(text: object) -> str:
    """As `shown`, but the text keeps its lines."""
    return "\n".join(map(shown, str(text).split("\n")))


def in_one_line(text: str) -> str:
    """As `shown`, with all white space replaced by single spaces."""
    return shown(" ".join(text.split()))


@contextmanager
def _while_read(*, err: bool = False) -> Iterator[None]:
    """Handle a reader that closes the pipe early, like `| head`: see `say`."""
    try:
        yield
    except BrokenPipeError:
        # A later flush of the stream would raise the same error.
        setattr(sys, "stderr" if err else "stdout", open(os.devnull, "w"))  # noqa: PTH123, SIM115
        if not err:
            raise SystemExit(1) from None


def unbroken(text: object) -> str:
    """As `shown`, for a part of a text of `wrapped`: no line is broken within the part."""
    return shown(text).replace(" ", _GLUE)


def wrapped(text: str, *, err: bool = False, before: str = "") -> str:
    """The lines of a text, each wrapped for the terminal. Further lines are indented by 4 more spaces than the first
    line. Control characters are escaped.

    Words, texts in backquotes and `unbroken` texts stay whole, so that names and commands can be copied. A pipe or a
    file gets the lines as they are, unless COLUMNS is set. `before`: a text that the caller prints before the result.
    """
    on_terminal = (sys.stderr if err else sys.stdout).isatty() or os.environ.get("COLUMNS")
    width = shutil.get_terminal_size().columns if on_terminal else _WIDE
    first, *others = text.split("\n")
    lines = [_wrapped_line(unbroken(before) + first, width)[len(before) :]]
    return "\n".join(lines + [_wrapped_line(line, width) for line in others])


def _wrapped_line(line: str, width: int) -> str:
    plain = _GLUE.join(map(shown, line.split(_GLUE)))
    indent = plain[: len(plain) - len(plain.lstrip(" "))]
    filled = textwrap.fill(
        re.sub("`[^`]+`", lambda quoted: quoted[0].replace(" ", _GLUE), plain.strip(" ")),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return filled.replace(_GLUE, " ")


def say(text: object, *, err: bool = False) -> None:
    """Print lines as they are: data, and commands to copy. For sentences use `say_wrapped`.

    If the reader has closed the pipe, messages (`err`) are lost, and the command goes on. If other output is lost, the
    command ends with exit code 1.
    """
    with _while_read(err=err):
        click.echo(printable(text), err=err)


def say_wrapped(text: str, *, err: bool = False) -> None:
    """Print the lines of a text, wrapped for the terminal (`wrapped`)."""
    say(wrapped(text, err=err), err=err)


def confirm(question: str, *, err: bool = False) -> None:
    """Ask the question, and end the command unless the answer is yes."""
    click.confirm(wrapped(question, err=err), abort=True, err=err)


def say_rows(batches: "Iterable[pa.RecordBatch]", limit: int | None) -> None:
    """Print rows, one JSON object a line. `limit`: the largest number of rows; None: all.

    Values that JSON lacks are texts. NaN and infinite numbers have the same texts as in Spark's `to_json`.
    """
    for row in islice((row for batch in batches for row in batch.to_pylist()), limit):
        say(json.dumps(_as_json(row), ensure_ascii=False, default=str))


def _as_json(value: object) -> object:
    match value:
        case dict():
            return {name: _as_json(each) for name, each in value.items()}
        case list() | tuple():
            return [*map(_as_json, value)]
        case float() if not isfinite(value):
            return json.dumps(value)  # like NaN, -Infinity
        case bytes():
            return value.decode("utf-8", "backslashreplace")
    return value


def say_as_received(body: bytes) -> None:
    """Print bytes from outside: unchanged to a file or pipe, escaped to a terminal."""
    terminal = sys.stdout.isatty()
    with _while_read():
        click.echo(printable(body.decode("utf-8", "backslashreplace")) if terminal else body, nl=False)


def say_traceback(error: BaseException) -> None:
    """Print an unexpected error with its traceback."""
    say("".join(traceback.format_exception(error)), err=True)


def track(items: Iterable[T], total: int, what: str) -> Iterable[T]:
    """The items, with a progress bar and an estimate on stderr, if stderr is a terminal (`parallel.Track`)."""
    if not sys.stderr.isatty():
        return items
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return _tracked(
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ),
        items,
        total,
        what,
    )


def _tracked(bar: "Progress", items: Iterable[T], total: int, what: str) -> Iterator[T]:
    with bar:
        yield from bar.track(items, total=total, description=what)


def print_json(document: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON document."""
    say(json.dumps(document, indent=2))


def print_found(
    found: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    *,
    as_json: bool,
    nothing: str = "",
) -> None:
    """Print records as one JSON document or as a table.

    `columns`: the fields of the table by column title. `nothing`: the message in place of an empty
    table.
    """
    if as_json:
        print_json(found)
    elif nothing and not found:
        say_wrapped(nothing)
    else:
        rows = ([one[field] for field in columns.values()] for one in found)
        print_table(columns, ([_cell(value) for value in row] for row in rows))


def _cell(value: object) -> object:
    return "-" if value is None else f"{value:.0f}" if isinstance(value, float) else value


def print_table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table. Cells are plain text without markup, because keys and errors come from outside."""
    from rich.console import Console
    from rich.table import Column, Table
    from rich.text import Text

    table = Table(*(Column(head, overflow="fold") for head in heads))
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(shown(cell)) for cell in row))
    with _while_read():  # Rich, too, raises an error if the reader has closed the pipe
        Console().print(table)
