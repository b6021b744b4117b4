"""Runs a program as if only some extras were installed: `python -m tests.support.only EXTRAS PROGRAM …`.

EXTRAS are the names of extras, with commas between them, or the empty text. Only modules of these extras, of the
requirements in pyproject, and of their dependencies can be imported. PROGRAM is a module.
"""

import re
import runpy
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from packaging.requirements import Requirement

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
OWN = "s3notify-platform"


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def distributions(extras: Iterable[str]) -> set[str]:
    """The distributions that an installation with these extras has."""
    project = tomllib.loads(PROJECT.read_text())["project"]
    found: set[tuple[str, frozenset[str]]] = set()
    waiting = [(OWN, frozenset(extras))]
    while waiting:
        if (one := waiting.pop()) in found:
            continue
        found.add(one)
        name, wanted = one
        if name == OWN:
            texts = [*project["dependencies"]]
            texts += [t for extra in wanted for t in project["optional-dependencies"][extra]]
        else:
            try:
                texts = requires(name) or []
            except PackageNotFoundError:  # the requirement is for another platform
                continue
        for requirement in map(Requirement, texts):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append((_plain(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in found}


class Present(PathFinder):
    """Finds modules as usual, but no module in `absent`."""

    absent: ClassVar[set[str]] = set()

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname.partition(".")[0] in cls.absent else super().find_spec(fullname, path, target)


def main() -> None:
    extras, program, *arguments = sys.argv[1:]
    present = distributions(filter(None, extras.split(",")))
    Present.absent = {
        module
        for module, owners in packages_distributions().items()
        if not {_plain(owner) for owner in owners} & present
    } - {"s3notify_platform", "tests"}
    sys.meta_path[sys.meta_path.index(PathFinder)] = Present
    sys.argv = [program, *arguments]
    runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
