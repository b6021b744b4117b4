"""`dagster_internals` lists each private part of Dagster that this package uses."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import s3notify_platform
from s3notify_platform.orchestration import dagster_internals

PRIVATE = re.compile(r"dagster(\.\w+)*\._|dagster_spark\.utils")


def private_parts(path: Path) -> Iterator[str]:
    """The names that a file imports from private modules, and the private attributes of contexts that it uses."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if PRIVATE.match(module):
                yield from (alias.name for alias in names)
            case ast.Attribute(value=ast.Name(id="context"), attr=name) if name.startswith("_"):
                yield f"context.{name}"


def test_each_private_part_is_listed_with_its_reason() -> None:
    """Otherwise nobody would know what an upgrade of Dagster can break, and why the part is used."""
    reasons = re.findall(r"^- [^:]+:((?:[^\n]|\n  )+)\.$", dagster_internals.__doc__ or "", re.MULTILINE)
    listed = {
        name.split(" which ")[0].strip(" ,") for text in reasons for name in re.split(r",\s+(?!which)", text)
    }
    package = Path(s3notify_platform.__file__).parent
    assert listed == {name for path in package.rglob("*.py") for name in private_parts(path)}
