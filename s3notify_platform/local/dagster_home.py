"""A DAGSTER_HOME for a project: its `dagster.yaml` gives warm runs to `dg dev` and `dagster dev`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.dagster_dev import INSTANCE, storage

_LAUNCHER: Final = "  class: WarmRunLauncher\n"
_STARTS: Final = (
    f"{_LAUNCHER}  config: {{start_supervisor: true}}  # so that nobody has to start `s3notify warm`\n"
)
_WANTED: Final = ("run_launcher", "run_coordinator", "sensors", "event_log_storage")
"""Keys that warm runs need. The other keys may differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HomeFile:
    """The `dagster.yaml` of a home. `written`: True if the file is new.

    `missing`: the lines that an existing file lacks. `others`: the keys in `missing` that the existing file sets to
    another value.
    """

    path: Path
    written: bool
    missing: str = ""
    others: tuple[str, ...] = ()


def prepare_home(home: Path) -> HomeFile:
    """Creates the folder `home` with a `dagster.yaml` for warm runs. An existing file is not changed.

    `UsageError` if the existing file is not a YAML mapping.
    """
    home.mkdir(parents=True, exist_ok=True)
    path = home.resolve() / "dagster.yaml"
    text = INSTANCE.replace(_LAUNCHER, _STARTS) + storage(home)
    try:
        with path.open("x") as file:
            file.write(text)
    except FileExistsError:
        return _compared(path, yaml.safe_load(text))
    return HomeFile(path=path, written=True)


def _compared(path: Path, wanted: dict[str, Any]) -> HomeFile:
    try:
        there = yaml.safe_load(path.read_text()) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {error}") from error
    if not isinstance(there, dict):
        raise UsageError(f"{path} is not a dagster.yaml: it must have keys, like run_launcher")
    missing = {name: wanted[name] for name in _WANTED if there.get(name) != wanted[name]}
    if "storage" in there:
        missing.pop("event_log_storage", None)  # a person has chosen PostgreSQL, or another place
    return HomeFile(
        path=path,
        written=False,
        missing=yaml.safe_dump(missing, sort_keys=False) if missing else "",
        others=tuple(name for name in missing if name in there),
    )
