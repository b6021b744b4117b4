"""The tree of the package: a file can be found by its name, and its tests by its folder."""

import json
from collections import Counter
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


def test_durations_name_files_that_exist() -> None:
    """Otherwise the order of the test files would rest on files that are gone."""
    stored = json.loads((TESTS.parent / "durations.json").read_text())
    assert [name for name in stored if not (TESTS.parents[1] / name).is_file()] == []
