"""The tree of the package: a file can be found by its name, and its tests by its folder."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import s3notify_platform

PACKAGE = Path(s3notify_platform.__file__).parent
TESTS = Path(__file__).parent
LINES_MAX = 450

PARALLEL = {"__init__", "__main__", "registry"}
"""File names that several folders have, because the files have the same role."""


def test_file_names_are_unique() -> None:
    """Otherwise two files could be confused. Commands are exempt: each is a file of `cli` with the command's name."""
    names = Counter(path.stem for path in PACKAGE.rglob("*.py") if path.parent.name != "cli")
    assert {name for name, count in names.items() if count > 1} <= PARALLEL


def test_files_are_short() -> None:
    long = {
        path.name: n
        for path in PACKAGE.rglob("*.py")
        if (n := len(path.read_text().splitlines())) > LINES_MAX
    }
    assert not long


def test_tests_are_where_their_packages_are() -> None:
    folders = {PACKAGE / path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")}
    assert [str(at) for at in folders if not at.is_dir() and not at.with_suffix(".py").is_file()] == []


def test_each_folder_has_a_description() -> None:
    texts = {path.parent.name: path.read_text() for path in PACKAGE.rglob("__init__.py")}
    assert [name for name, text in texts.items() if not text.lstrip("r").startswith('"""')] == []


def test_a_number_has_one_name_and_a_name_one_number() -> None:
    """Otherwise a reader who knows one module's `ATTEMPTS` would misread the other module's. `kernel/limits.py` has the
    numbers that modules share.
    """
    found: dict[str, set[float]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for name, number in numbers_of(path):
            found[name].add(number)
    assert {name for name, values in found.items() if len(values) > 1} == set()


def numbers_of(path: Path) -> Iterator[tuple[str, float]]:
    """The names of a module's numbers. A number may be an arithmetic expression."""
    for statement in ast.parse(path.read_text()).body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                pass
            case _:
                continue
        kinds = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
        if name.isupper() and all(isinstance(part, kinds) for part in ast.walk(value)):
            number = eval(compile(ast.Expression(value), path.name, "eval"))
            if isinstance(number, int | float):
                yield name.removeprefix("_"), number
