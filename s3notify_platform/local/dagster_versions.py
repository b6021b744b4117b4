"""Checks that the versions of Dagster's packages fit each other. The check reads the packages' metadata, and imports
nothing.

Each version of `dagster-pyspark` needs one exact version of `dagster`, and is published days after that version.
`create-dagster` pins the newest `dagster` in a new project. So a later `pip install` may replace the version that fits.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from typing import Final

from s3notify_platform.kernel.errors import UsageError

MINOR: Final = "1.13."
"""The one minor version of Dagster that `pyproject.toml` allows."""

LIBRARY_MINOR: Final = "0.29."
"""The version of Dagster's libraries that fits `MINOR`. The last number of a library's version is equal to the last
number of Dagster's version.
"""

_OURS: Final = "s3notify-platform"
_WITH_DAGSTER: Final = ("dagster-shared", "dagster-pipes")
"""Packages that are installed with `dagster`, and have the same version as `dagster`."""

Packages = Mapping[str, tuple[str, Sequence[str]]]
"""Installed packages by name: the version of each, and its requirements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The result of the check.

    `problem`: the packages that do not fit each other, and the command to type; "" if all packages fit, or if
    Dagster is not installed.
    `refused`: True if the Dagster part of this package cannot be loaded with these versions.
    """

    problem: str = ""
    refused: bool = False


def check_minor(version: str) -> None:
    """Raises `UsageError`, with the command to type, if Dagster's `version` does not have the minor version `MINOR`.

    Reads no metadata if the version fits.

    The modules of Dagster that `orchestration.dagster_internals` imports differ between minor versions.
    """
    if not version.startswith(MINOR):
        found = installed_versions().problem
        raise UsageError(found or f"dagster {version} is installed, and this package needs {MINOR}*")


def check_pair(dagster: str, pyspark: str) -> None:
    """Warns, with the command to type, if `dagster-pyspark` needs another version of `dagster`.

    A warning is enough, because these two versions may work together nevertheless. Reads no metadata if the versions
    fit.
    """
    if dagster.removeprefix(MINOR) != pyspark.removeprefix(LIBRARY_MINOR):
        pair = f"dagster {dagster} and dagster-pyspark {pyspark} do not go together"
        warnings.warn(installed_versions().problem or pair, stacklevel=2)


def installed_versions() -> Versions:
    """Compares the installed versions with the packages' requirements. Reads the metadata of all packages."""
    # Python imports the first one on its path, for example that of a virtual environment and not the system's.
    found = reversed([*distributions()])
    names = ((one.name.lower().replace("_", "-"), one) for one in found)
    return compared(
        {
            name: (one.version, one.requires or ())
            for name, one in names
            if name.startswith((_OURS, "dagster"))
        }
    )


def compared(packages: Packages) -> Versions:
    """Like `installed_versions`, for these packages."""
    if "dagster" not in packages or not (broken := sorted({*_broken(packages)})):
        return Versions()
    version, _ = packages["dagster"]
    said = "; ".join(f"{name} {packages[name][0]} needs {needs}" for name, needs in broken)
    return Versions(
        problem=f"dagster {version} is installed, but {said}. Type: pip install {' '.join(_line(packages))} "
        "(and pin the same in a pyproject.toml that pins dagster)",
        refused=not version.startswith(MINOR),
    )


def _broken(packages: Packages) -> Iterator[tuple[str, str]]:
    """The requirements that the installed versions do not fulfil. Each item is a pair: the name of the package that has
    the requirement, and the requirement.
    """
    from packaging.requirements import Requirement  # Dagster itself requires `packaging`

    for name, (_, requires) in packages.items():
        for needs in map(Requirement, requires):
            applies = needs.marker is None or needs.marker.evaluate({"extra": "dagster"})
            if applies and needs.name in packages:
                version, _ = packages[needs.name]
                if not needs.specifier.contains(version, prereleases=True):
                    yield name, f"{needs.name}{needs.specifier}"


def _line(packages: Packages) -> Iterator[str]:
    """The arguments for the `pip install` that repairs the versions: the versions of Dagster's packages that fit the
    installed dagster-pyspark. If dagster-pyspark is missing or has another minor version, the arguments are this
    package's own requirements.
    """
    from packaging.requirements import Requirement

    there, _ = packages.get("dagster-pyspark", ("", ()))
    if not there.startswith(LIBRARY_MINOR):
        for needs in map(Requirement, packages.get(_OURS, ("", ()))[1]):
            if (
                needs.name.startswith("dagster")
                and needs.marker
                and needs.marker.evaluate({"extra": "dagster"})
            ):
                yield f"'{needs.name}{needs.specifier}'"
        return
    number = there.removeprefix(LIBRARY_MINOR)
    for name, (version, _) in sorted(packages.items()):
        right = (LIBRARY_MINOR if version.startswith("0.") else MINOR) + number
        if version != right and name not in (_OURS, *_WITH_DAGSTER):
            yield f"{name}=={right}"
