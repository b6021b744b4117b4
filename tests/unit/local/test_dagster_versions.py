"""If versions of Dagster's packages do not fit each other, a message names the command that repairs them."""

import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.dagster_versions import (
    LIBRARY_MINOR,
    MINOR,
    check_minor,
    check_pair,
    compared,
    installed_versions,
)
from tests.support.only import PROJECT

OURS = ("dagster<1.14,>=1.13.27; extra == 'dagster'", "dagster-pyspark<0.30,>=0.29.27; extra == 'dagster'")


def packages(dagster: str, **others: str) -> Mapping[str, tuple[str, Sequence[str]]]:
    """Packages with the same requirements as the published packages: each library needs one version of Dagster."""
    found: dict[str, tuple[str, Sequence[str]]] = {
        "dagster": (dagster, ()),
        "s3notify-platform": ("0.1.0", OURS),
    }
    for name, version in others.items():
        exactly = version.replace(LIBRARY_MINOR, MINOR).replace("0.30.", "1.14.")
        found[f"dagster-{name}"] = (version, [f"dagster=={exactly}"])
    return found


def test_fitting_versions_are_no_problem() -> None:
    assert compared(packages("1.13.27", pyspark="0.29.27", webserver="1.13.27")).problem == ""
    assert compared({}).problem == ""
    assert installed_versions().problem == "", "of this environment"


def test_the_remedy_for_a_dagster_that_is_too_new_is_the_older_one() -> None:
    """A version of `dagster-pyspark` appears days after the version of `dagster` that it needs. If the message asked
    for a newer `dagster-pyspark`, pip might find no such version, and the user could not repair the project.
    """
    found = compared(packages("1.13.29", pyspark="0.29.27", aws="0.29.27", webserver="1.13.29"))
    assert "dagster-pyspark 0.29.27 needs dagster==1.13.27" in found.problem
    assert "Type: pip install dagster==1.13.27 dagster-webserver==1.13.27 (" in found.problem
    assert not found.refused, "it may work"


@pytest.mark.parametrize(
    ("version", "pyspark"), [("1.12.4", "0.28.4"), ("1.14.0", "0.30.0"), ("1.14.0", "0.29.27")]
)
def test_another_minor_version_is_refused(version: str, pyspark: str) -> None:
    found = compared(packages(version, pyspark=pyspark))
    assert found.refused
    assert f"dagster {version} is installed, but" in found.problem
    line = found.problem.split("pip install ")[1]
    right = (
        "dagster==1.13.27"
        if pyspark == "0.29.27"
        else "'dagster<1.14,>=1.13.27' 'dagster-pyspark<0.30,>=0.29.27'"
    )
    assert line.startswith(right)


def test_the_import_checks_the_versions() -> None:
    """Modules of Dagster differ between minor versions. Without the check, a user would see an import error
    in place of the command to type. If versions that differ only in the last number were refused, working
    projects would stop.
    """
    with pytest.raises(UsageError, match=r"dagster 1\.14\.0 is installed"):
        check_minor("1.14.0")
    with pytest.warns(UserWarning, match="dagster-pyspark 0.29.27"):
        check_pair("1.13.29", "0.29.27")
    check_minor("1.13.99")
    check_pair("1.13.99", "0.29.99")


def importing(version: str, folder: Path) -> tuple[str, str]:
    """Imports the component in a new process, in which this version of Dagster is the first on Python's path. Returns
    what the process printed: its output and its errors.
    """
    metadata = folder / f"dagster-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: dagster\nVersion: {version}\n")
    program = (
        f"import dagster, sys; dagster.__version__ = {version!r}\n"
        f"sys.path.insert(0, {str(folder)!r})\n"
        "try:\n    from s3notify_platform import S3NotifyComponent\n"
        "except Exception as error:\n    print('SAID', error)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT.parent, capture_output=True, text=True, check=True
    )
    return ran.stdout, ran.stderr


def test_the_component_names_the_line_to_type_if_dagster_has_another_minor_version(tmp_path: Path) -> None:
    """Dagster imports the component when the project's YAML is loaded. Without the line to type, a user would see only
    an import error, and would not know which versions fit.
    """
    said, errors = importing("1.14.2", tmp_path)
    assert "SAID dagster 1.14.2 is installed" in said, errors
    assert "Type: pip install dagster==" in said


def test_the_component_warns_if_dagster_pyspark_needs_another_version(tmp_path: Path) -> None:
    """Otherwise a user would learn only from `s3notify doctor` that the newest Dagster replaced the version that
    fits.
    """
    said, errors = importing("1.13.9999", tmp_path)
    assert said == "", "the import succeeds"
    assert "UserWarning: dagster 1.13.9999 is installed, but" in errors
    assert "Type: pip install dagster==" in errors


def test_the_required_minor_versions_are_those_in_pyproject() -> None:
    text = tomllib.loads((PROJECT.parent / "pyproject.toml").read_text())
    extra = {
        one.name: one.specifier
        for one in map(Requirement, text["project"]["optional-dependencies"]["dagster"])
    }
    for name, minor in (("dagster", MINOR), ("dagster-pyspark", LIBRARY_MINOR)):
        assert minor + "99" in extra[name]
        below, above = (f"{minor.split('.')[0]}.{int(minor.split('.')[1]) + step}.0" for step in (-1, 1))
        assert below not in extra[name]
        assert above not in extra[name]
