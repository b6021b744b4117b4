"""The tree of the package: a file can be found by its name, and its tests by its folder."""

import ast
import json
import re
from collections import Counter
from pathlib import Path

import s3notify_platform
from s3notify_platform.source.source import Source

PACKAGE = Path(s3notify_platform.__file__).parent
TESTS = Path(__file__).parent
LINES_MAX = 450
SHAPES_MAX = 12

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


def test_at_most_twelve_shapes_carry_a_change() -> None:
    """A change is described by few values, each declared once. The state of a run is not among them."""
    shapes = [
        node.name
        for path in (PACKAGE / "engine" / "values").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and any("dataclass" in ast.unparse(each) for each in node.decorator_list)
    ]
    assert len(shapes) <= SHAPES_MAX, sorted(shapes)
    assert len({*shapes}) == len(shapes)
    described = (PACKAGE / "engine" / "values" / "__init__.py").read_text()
    assert [name for name in shapes if name not in described] == []
    elsewhere = {
        f"{path.name}: {node.name}"
        for path in (PACKAGE / "engine").rglob("*.py")
        if path.parent.name != "values"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and node.name in shapes
    }
    assert not elsewhere, "a shape is declared twice"


def test_only_one_module_makes_sources() -> None:
    """YAML, flags, Spark's options and the IO manager's fields would else have different defaults, checks or messages.

    A copy with other settings is made by `replace`.
    """
    makers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == Source.__name__
    }
    assert makers == {"source/build.py"}


def test_durations_name_files_that_exist() -> None:
    """Otherwise the order of the test files would rest on files that are gone."""
    stored = json.loads((TESTS.parent / "durations.json").read_text())
    assert [name for name in stored if not (TESTS.parents[1] / name).is_file()] == []


def test_each_feature_of_an_original_has_its_test() -> None:
    tests = TESTS.parent
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?` \|$", (tests / "SEEDS.md").read_text(), re.MULTILINE)
    assert len(named) > 20
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (tests / path).is_file() or f"def {name}" not in (tests / path).read_text()
    ]
    assert not missing
