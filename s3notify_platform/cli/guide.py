"""`s3notify guide`: the pages of `s3notify_platform/guide`, which is shipped with the package."""

import sys
from collections.abc import Mapping
from importlib.resources import files

import click

from s3notify_platform.cli.printing import say, say_wrapped


def pages() -> Mapping[str, str]:
    """The text of each page by its topic, in the order of the pages' names."""
    folder = files("s3notify_platform") / "guide"
    found = {page.name.removesuffix(".md"): page for page in folder.iterdir() if page.name.endswith(".md")}
    return {topic: found[topic].read_text() for topic in sorted(found)}


def summary(page: str) -> str:
    """The first sentence of a page, below its title."""
    first, end, _ = " ".join(page.split("\n\n")[1].split()).partition(". ")
    return first + end.rstrip()


@click.command(short_help="Read the guide.")
@click.argument("topic", required=False)
def guide(topic: str | None) -> None:
    """Show a page of the guide, or the list of its topics.

    On a terminal, the formatted page is shown one screen at a time. A pipe gets the page's Markdown.
    """
    found = pages()
    if topic is None:
        width = max(map(len, found))
        for name, text in found.items():
            say_wrapped(f"{name:{width}}  {summary(text)}")
        return
    if topic not in found:
        raise click.ClickException(f"no topic {topic!r}: use one of {', '.join(found)}")
    if not sys.stdout.isatty():
        say(found[topic])
        return
    from rich.console import Console
    from rich.markdown import Markdown

    console = Console()
    with console.pager(styles=True):
        console.print(Markdown(found[topic]))
