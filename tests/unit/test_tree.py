"""The tree of the package: a file can be found by its name, and its tests by its folder."""

import ast
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import s3notify_platform
from s3notify_platform.source.source import Source

PACKAGE = Path(s3notify_platform.__file__).parent
TESTS = Path(__file__).parent
LINES_MAX = 450
SHAPES_MAX = 12

PARALLEL = {"__init__", "__main__", "registry"}
"""File names that several folders have, because the files have the same role."""


FOLDERS = {
    # A command has the name of the folder whose work it starts.
    "events", "explain", "reconcile", "table", "warm", "demo",
    # The step of a round that commits, and the module by which all changes of a table are committed.
    "commit",
    # The rules of S3 on keys, and the rules of a source on rows.
    "rules",
    # The module with the package's main class.
    "source",
}  # fmt: skip
"""Names that a file shares with a folder, with the reason."""

TESTED_ELSEWHERE = {
    # Definitions that Dagster loads: `tests/e2e` starts them.
    "defs/demo",
}
"""Packages without unit tests, with the reason."""


def test_file_names_are_unique() -> None:
    """Otherwise two files could be confused."""
    names = Counter(path.stem for path in PACKAGE.rglob("*.py"))
    assert {name for name, count in names.items() if count > 1} <= PARALLEL


def test_file_names_differ_from_folder_names() -> None:
    """Otherwise a name in a sentence could mean the file or the folder."""
    folders = {path.parent.name for path in PACKAGE.rglob("*.py")}
    assert {path.stem for path in PACKAGE.rglob("*.py")} & folders == FOLDERS


def test_each_package_has_its_unit_tests() -> None:
    """Otherwise a package could be added without tests, and nobody would notice its faults before users do. A package
    is a folder with modules besides `__init__`.
    """
    packages = {
        str(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if path.stem not in PARALLEL
    }
    tested = {str(path.parent.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    assert packages - tested == TESTED_ELSEWHERE


def test_each_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in TESTS.rglob("test_*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").is_file()] == []


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


def test_at_most_twelve_classes_describe_a_change() -> None:
    """Otherwise a maintainer who follows a change through the engine would have to know many classes, or could confuse
    two classes with the same name. A class that describes a change is in `engine/values`. The state of a run is not
    such a class.
    """
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
    """YAML, flags, Spark's options and the IO manager's fields would otherwise differ in defaults, checks or messages.

    `replace` makes copies of a source with other settings.
    """
    makers = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == Source.__name__
    }
    assert makers == {"source/build.py"}


def test_durations_name_files_that_exist() -> None:
    """Otherwise the order of the test files would depend on files that do not exist."""
    stored = json.loads((TESTS.parent / "durations.json").read_text())
    assert [name for name in stored if not (TESTS.parents[1] / name).is_file()] == []


def test_each_test_that_is_named_in_seeds_md_exists() -> None:
    tests = TESTS.parent
    named = re.findall(r"`([\w/]+\.py)(?:::(\w+))?` \|$", (tests / "SEEDS.md").read_text(), re.MULTILINE)
    assert len(named) > 20
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (tests / path).is_file() or f"def {name}" not in (tests / path).read_text()
    ]
    assert not missing


def test_each_name_of_a_number_is_defined_in_one_file() -> None:
    """Otherwise a reader who knows the `ATTEMPTS` of one module would misread the `ATTEMPTS` of another module.
    `kernel/limits.py` has the numbers that modules share.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for name, _ in numbers_of(path):
            found[name].add(path.relative_to(PACKAGE).as_posix())
    assert {name: files for name, files in found.items() if len(files) > 1} == {}


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
