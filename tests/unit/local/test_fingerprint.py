"""The fingerprint of a transform's code: the edits that change the fingerprint, and the edits that do not."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

import pytest

from s3notify_platform.kernel.limits import MAX_CODE_CHARS, MAX_CODE_STATEMENTS
from s3notify_platform.local.fingerprint import declared_asset, fingerprint
from s3notify_platform.table.code_versions import NO_TRANSFORM

BASE = {
    "proj/__init__.py": "",
    "proj/jobs.py": '''"""Jobs."""

import math
import numpy as np
from . import rates
from proj.lib.text import clean_name as named
from side import LIMIT, unused_by_jobs

FACTOR = 2
CACHE = {}
CACHE["a"] = 1


def make(rate):
    def inner(df):
        return df.withColumn("x", rate * FACTOR)

    return inner


def helper(row, *, most=10):
    """Says what it does."""
    return min(row, most) + math.floor(rates.VAT)


def not_named():
    return 1


def clean(df):
    """The transform."""
    # a comment
    return named(helper(df.select("a", "b").where(f"a > {LIMIT!r}"))) + np.mean(CACHE)


class Cleaner:
    def __call__(self, df):
        return helper(df)


made = make(1.5)
cleaner = Cleaner()
short = lambda df: df.limit(5)
''',
    "proj/rates.py": "VAT = 0.19\nOTHER = 1\n",
    "proj/lib/text.py": "from proj.lib.more import *\n\n\ndef clean_name(x):\n    return lower(x)\n",
    "proj/lib/more.py": "def lower(x):\n    return x.lower()\n\n\ndef upper(x):\n    return x.upper()\n",
    "side.py": "LIMIT = 5\n\n\ndef unused_by_jobs():\n    return 1\n",
}


@pytest.fixture
def of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns the fingerprint of a function in a project of these files. Each call uses another folder."""
    numbers = count()

    def found(files: Mapping[str, str], path: str = "proj.jobs.clean") -> str:
        folder = written(tmp_path / f"{next(numbers)}", files)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            importlib.invalidate_caches()
            return fingerprint(path)

    return found


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def edited(name: str, old: str, new: str) -> dict[str, str]:
    assert BASE[name].count(old) == 1
    return BASE | {name: BASE[name].replace(old, new)}


OTHER_CODE = {
    "its own text": ("proj/jobs.py", '"a", "b"', '"a", "c"'),
    "a function that it calls": ("proj/jobs.py", "min(row, most)", "max(row, most)"),
    "a default": ("proj/jobs.py", "most=10", "most=11"),
    "a number's type": ("proj/jobs.py", "most=10", "most=10.0"),
    "a constant of another module": ("proj/rates.py", "0.19", "0.2"),
    "a constant of a module that is not of the package": ("side.py", "5", "6"),
    "a function imported by a star": ("proj/lib/more.py", "x.lower()", "x.lower().strip()"),
    "a value put into a dictionary": ("proj/jobs.py", '"a"] = 1', '"a"] = 2'),
    "an f-string": ("proj/jobs.py", "a > {LIMIT", "a >= {LIMIT"),
    "an import of another package": ("proj/jobs.py", "import numpy as np", "import numpy.ma as np"),
}
SAME_CODE = {
    "a comment": ("proj/jobs.py", "# a comment", "# another one"),
    "its docstring": ("proj/jobs.py", '"""The transform."""', '"""Something else."""'),
    "the docstring of a function that it calls": ("proj/jobs.py", '"""Says what it does."""', '"""?"""'),
    "line breaks and quotes": ("proj/jobs.py", 'df.select("a", "b")', "(df\n  .select('a',\n 'b',))"),
    "functions that it does not name": ("proj/jobs.py", "return 1", "return 2"),
    "a constant that it does not name": ("proj/rates.py", "OTHER = 1", "OTHER = 2"),
    "a function behind a star that it does not name": ("proj/lib/more.py", "x.upper()", "x"),
    "a function that is imported and not named": ("side.py", "return 1", "return 2"),
}


@pytest.mark.parametrize("what", OTHER_CODE)
def test_a_change_of_used_code_changes_the_fingerprint(of: Callable[..., str], what: str) -> None:
    assert of(edited(*OTHER_CODE[what])) != of(BASE)


@pytest.mark.parametrize("what", SAME_CODE)
def test_an_irrelevant_change_keeps_the_fingerprint(of: Callable[..., str], what: str) -> None:
    assert of(edited(*SAME_CODE[what])) == of(BASE) != ""


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("proj.jobs.made", "make(1.5)", "make(1.6)"),
        ("proj.jobs.made", "FACTOR = 2", "FACTOR = 3"),
        ("proj.jobs.cleaner", "min(row, most)", "max(row, most)"),
        ("proj.jobs.short", "limit(5)", "limit(6)"),
    ],
)
def test_any_callable_has_a_fingerprint(of: Callable[..., str], path: str, old: str, new: str) -> None:
    """Otherwise a user could edit a transform that is an instance, a lambda or the result of a call, and the code
    version would stay the same. The command `s3notify backfill --stale` would then not find the rows of the old code.
    """
    assert of(edited("proj/jobs.py", old, new), path) != of(BASE, path) != ""


def test_an_imported_function_has_the_fingerprint_of_its_own_module(of: Callable[..., str]) -> None:
    files = BASE | {"proj/api.py": "from proj.jobs import clean\nfrom proj.lib import text\n"}
    assert of(files, "proj.api.clean") == of(BASE)


def test_a_slot_asset_has_the_fingerprint_of_its_function(of: Callable[..., str]) -> None:
    """A changed owner or source of a slot asset must not make its slots stale."""
    text = (
        "from s3notify_platform import s3_slot_asset\n\n@s3_slot_asset({0})\ndef daily(df):\n    return df\n"
    )
    one, two = (
        of({"jobs.py": text.format(each)}, "jobs.daily")
        for each in ('source="a"', 'source="b", owners=["x"]')
    )
    other = of(
        {"jobs.py": text.format('source="a"').replace("return df", "return df.limit(1)")}, "jobs.daily"
    )
    assert one == two != other


def test_declared_arguments_of_slot_assets_are_read_from_source_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands do not import the project's code. If a command guessed an argument that the source code does not show,
    rows of the present code could count as stale.
    """
    text = """
import s3notify_platform as s
from s3notify_platform import s3_slot_asset

@s3_slot_asset(source="orders")
def daily(df): return df

@s.s3_slot_asset(source="orders", name="weekly", code_version="v2")
def of_weeks(df): return df

made = s3_slot_asset(source="orders", name=NAME)(daily)
nothing = 1
"""
    monkeypatch.syspath_prepend(written(tmp_path / "p", {"arguments.py": text}))
    found = {
        name: declared_asset(f"arguments.{name}") for name in ("daily", "of_weeks", "made", "nothing", "gone")
    }
    assert {name: (each.name, each.code_version) for name, each in found.items()} == {
        "daily": ("daily", ""),
        "of_weeks": ("weekly", "v2"),
        "made": (None, ""),
        "nothing": (None, None),
        "gone": (None, None),
    }


def test_a_source_without_a_transform_has_a_code_version_too() -> None:
    """Rows made without a transform must become stale when a transform is added."""
    assert fingerprint(None) == fingerprint("") == NO_TRANSFORM


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ({}, "nowhere.clean"),
        ({"jobs.py": "x = 1"}, "jobs.clean"),
        ({"jobs.py": "def clean(:"}, "jobs.clean"),
        ({"jobs.py": "def clean(df): return '\0'"}, "jobs.clean"),
        ({"jobs.py": "def clean(df): pass\n" + "#" * MAX_CODE_CHARS}, "jobs.clean"),
        ({"jobs.py": "x = " + "(" * 5000 + ")" * 5000 + "\ndef clean(df): pass"}, "jobs.clean"),
        ({}, "math.floor"),
        ({}, "clean"),
        ({}, ".clean"),
        ({}, "..."),
    ],
)
def test_code_that_cannot_be_read_has_no_fingerprint(
    of: Callable[..., str], files: dict[str, str], path: str
) -> None:
    """Missing, broken or huge files of code must not stop definitions from loading."""
    assert of(files, path) == ""


def test_deep_and_circular_code_is_read_to_its_end(of: Callable[..., str]) -> None:
    chain = "def clean(df):\n    return df" + "".join(f".withColumn('c{n}', {n})" for n in range(400))
    a = "from b import g\n\ndef f(df):\n    return g(df)\n"
    b = "from a import f\n\ndef g(df):\n    return f(df) or g(df)\n"
    assert of({"jobs.py": chain}, "jobs.clean") != of(
        {"jobs.py": chain.replace("c399", "d399")}, "jobs.clean"
    )
    assert of({"a.py": a, "b.py": b}, "a.f") != of({"a.py": a, "b.py": b.replace("or", "and")}, "a.f")


def test_only_the_first_statements_count(of: Callable[..., str]) -> None:
    """Without the limit `MAX_CODE_STATEMENTS`, a function with very many dependencies would delay each command that
    needs the code version.
    """
    lines = [f"x{n} = x{n + 1}" for n in range(MAX_CODE_STATEMENTS + 1)]
    text = "def clean(df):\n    return x0\n" + "\n".join(lines)
    long = of({"jobs.py": text}, "jobs.clean")
    assert of({"jobs.py": text.replace("x7 =", "x7 = 1 +")}, "jobs.clean") != long
    assert of({"jobs.py": text + "1"}, "jobs.clean") == long


def test_installed_packages_do_not_count(tmp_path: Path) -> None:
    """Otherwise an upgrade of a library would make the rows of all transforms that use the library stale. If the
    project itself is installed, its code must count, because the rows of old code would otherwise count as current.
    """
    jobs = "from tool import use\nfrom own.part import more\n\ndef clean(df):\n    return use(more(df))\n"
    files = {"own/__init__.py": "", "own/jobs.py": jobs, "own/part.py": "def more(x): return x"}
    files = {f"site-packages/{name}": text for name, text in files.items()}
    files["site-packages/tool.py"] = "def use(x): return x"
    changes = {"": "", "tool.py": "def use(x): return -x", "own/part.py": "def more(x): return -x"}
    found = []
    for number, (name, text) in enumerate(changes.items()):
        folder = written(tmp_path / f"{number}", files | ({f"site-packages/{name}": text} if name else {}))
        found.append(in_another_process(folder / "site-packages", "own.jobs.clean"))
    assert found[0] == found[1] != found[2]


def in_another_process(folder: Path, path: str, *, imported: str = "") -> str:
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        f"{f'import {imported}' if imported else ''}\n"
        "from s3notify_platform.local.fingerprint import fingerprint\n"
        "import json; print(json.dumps([fingerprint(sys.argv[1]), 'ran' in sys.argv]))"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    found, ran = json.loads(done.stdout)
    assert not ran
    return str(found)


def test_every_process_computes_the_same_fingerprint(of: Callable[..., str], tmp_path: Path) -> None:
    """The fingerprint must not depend on imports of the project, and no code of the project may be run."""
    files = BASE | {"proj/lib/text.py": "import sys\nsys.argv.append('ran')\n" + BASE["proj/lib/text.py"]}
    here = of(files)
    folder = written(tmp_path / "elsewhere", files)
    assert in_another_process(folder, "proj.jobs.clean") == here
    assert in_another_process(folder, "proj.jobs.clean", imported="proj.rates, side") == here
