"""The sources that a project's YAML defines, read without Dagster. Commands take their options from these sources.

The folder of the YAML is given by `--defs`, else by S3NOTIFY_DEFS. The default is the folder `defs` in the working
directory. If there is a `pyproject.toml`, the default may also be `src/*/defs` or `*/defs`. Folders of another project
inside this project do not count. Reading runs none of the YAML's content: see `defs_yaml`.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import given_of, named, unknown
from s3notify_platform.local.attributes import Attributes, known_now
from s3notify_platform.local.defs_yaml import documents_of, evaluated
from s3notify_platform.protocols.notification_queue import TopicSettings
from s3notify_platform.source.bucket_settings import unusual_prefixes, with_leases
from s3notify_platform.source.settings import (
    DEFS_VARIABLE,
    SETTINGS,
    LocationSettings,
    TopicSizeSettings,
    topic_of,
    ungrouped,
)

if TYPE_CHECKING:
    from s3notify_platform.source.source import Source

PLACES: Final = ("defs", "src/*/defs", "*/defs")
PROJECT_FILES: Final = ("pyproject.toml", "dg.toml")
"""A folder with one of these files is a project."""

DEMO_FOLDER: Final = Path(__file__).resolve().parent.parent / "defs"
FIRST_SOURCE: Final = """No source is defined. Write defs/orders/defs.yaml:

    type: s3notify_platform.S3NotifyComponent
    attributes:
      name: orders
      bucket: YOUR-BUCKET
      prefix: raw/orders/

Then reload, or start `s3notify dev`. To check the bucket: `s3notify doctor orders`. To make
the bucket announce its changes: `s3notify init orders --events`."""
COMPONENT: Final = "s3notify_platform.S3NotifyComponent"
_OURS: Final = "s3notify_platform."
_OF_DOCUMENT: Final = ("type", "attributes", "template_vars_module", "requirements", "post_processing")
"""Dagster's own keys beside the attributes."""

_OF_PLACE: Final = {"bucket", "platform_bucket", *named(LocationSettings)}
_OF_SPARK: Final = ("master", "remote")
_MORE: Final = ("transform", "list_seconds", "max_attempts", "backoff_seconds")
"""Attributes that a command uses besides the settings."""


@dataclass(frozen=True, kw_only=True)
class ConfiguredSource:
    """One source in a file below `folder`. `values` evaluates the expressions in `attributes`."""

    folder: Path
    file: Path
    attributes: Mapping[str, Any]
    type: str = COMPONENT
    project: Sequence["ConfiguredSource"] = field(default=(), repr=False, compare=False)
    """All sources of the project, including this one."""

    @property
    def name(self) -> str:
        """The source's name."""
        return str(self.checked.get("name"))

    @property
    def buckets(self) -> set[Any]:
        """The watched bucket, and the bucket of the platform's own objects."""
        return {self.checked.get("bucket"), self.checked.get("platform_bucket")} - {None}

    @cached_property
    def checked(self) -> Attributes:
        """The source's attributes, converted to their types. `UsageError` for unknown keys and wrong values."""
        try:
            return Attributes.of(self.attributes, self._value, ours=self.type.startswith(_OURS))
        except UsageError as error:
            raise UsageError("\n".join(f"{self.file}: {line}" for line in str(error).split("\n"))) from error

    def check(self) -> None:
        """Raises `UsageError` for errors that appear only when the source is built: formats, schema, contradicting
        settings.
        """
        try:
            self.source()
        except UsageError as error:
            raise UsageError(f"{self.file}: {error}") from error

    @cached_property
    def values(self) -> dict[str, Any]:
        """The source's settings, by the names of the commands' parameters. `UsageError` if a value is not known here,
        or if only Dagster knows how to reach the bucket or the tables.
        """
        self._check_resources()
        groups = {name: self.checked.get(name) or {} for name in ("s3", "dynamodb", "latest", "spark")}
        given = ungrouped({**self.checked.values, **groups})
        found = {name: known_now(given[name]) for name in (*SETTINGS, *_MORE) if given.get(name) is not None}
        found |= {name: value for name, value in groups["spark"].items() if value and name in _OF_SPARK}
        try:
            found = with_leases(found)
            LocationSettings(**given_of(found, LocationSettings))
        except UsageError as error:
            raise UsageError(f"source {self.name!r}: {error}") from error
        others = filter(None, (found.get("other_platform_prefixes"), *self._prefixes_of_others()))
        return found | {
            "other_platform_prefixes": "|".join(dict.fromkeys(others)),
            "confs": [f"{name}={value}" for name, value in _flat(groups["spark"].get("config", {}))],
        }

    def _check_resources(self) -> None:
        replaced = self.checked.values.get("resources")
        for group, key in replaced.items() if isinstance(replaced, Mapping) else ():
            if group in ("s3", "dynamodb") and self.checked.values.get(group) is None:
                raise UsageError(
                    f"source {self.name!r}: commands cannot see Dagster's resource {key!r}: write the same settings "
                    f"into the group {group}, too ({group}: {{}} for the default access)"
                )

    def _prefixes_of_others(self) -> Iterator[str]:
        """Prefixes in this bucket where the project's other sources keep their own objects."""
        bucket = str(self.checked.get("bucket"))
        for other in self.project:
            if other is not self:
                with suppress(UsageError):  # an expression that only Dagster evaluates
                    values = {
                        name: other.checked.get(name) for name in _OF_PLACE & other.checked.values.keys()
                    }
                    yield from unusual_prefixes(values, bucket)

    @property
    def topic(self) -> TopicSettings:
        """The settings of the source's own topic."""
        sizes = {name: known_now(self.checked.get(name)) for name in named(TopicSizeSettings)}
        return topic_of(self.values | sizes)

    @property
    def inlets(self) -> tuple[str, ...]:
        """The inlets in the source's YAML, by name."""
        return tuple(
            kind.name
            for kind in SERVICES.values()
            if kind.direction == "inlet" and self.checked.get(kind.name) is not None
        )

    @property
    def code_versions(self) -> dict[str, str]:
        """The code versions of the source and of its slot assets, by name, if they are known here.

        The modules are looked up on `sys.path`, but not imported.
        """
        from s3notify_platform.local.fingerprint import declared_asset, fingerprint

        found: dict[str, str] = {}
        with suppress(UsageError):  # an expression that only Dagster evaluates
            declared, transform = self.checked.get("code_version"), self.checked.get("transform")
            found[self.name] = declared or fingerprint(transform)
        with suppress(UsageError):
            for path in self.checked.get("slot_assets") or ():
                asset = declared_asset(path)
                if asset.name is not None and asset.code_version is not None:
                    found[asset.name] = asset.code_version or fingerprint(path)
        return {name: version for name, version in found.items() if version}

    @property
    def place(self) -> LocationSettings:
        """The places of the source's own objects, with the default prefixes."""
        return LocationSettings(**given_of(self.values, LocationSettings))

    @property
    def keyspace(self) -> tuple[str, str]:
        """The prefix of the source's signals, and the prefix of its keys."""
        return self.place.keyspace_prefix, self.values.get("prefix", "")

    def source(self, **given: Any) -> "Source":
        """The source. The settings in `given` override those in the YAML. `UsageError` for wrong settings."""
        from s3notify_platform.source.build import build

        return build({name: value for name, value in self.values.items() if name in SETTINGS} | given)

    def _value(self, name: str, value: str) -> Any:
        return evaluated(self.file, name, value)


def _flat(given: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def folders(given: str | None = None) -> list[Path]:
    """The folders with definitions. `UsageError` if a given folder does not exist."""
    if given := given or os.environ.get(DEFS_VARIABLE):
        if not Path(given).is_dir():
            raise UsageError(f"{given}: there is no such folder; give one with SOURCE/defs.yaml in it")
        return [Path(given)]
    places = PLACES if any(Path(name).is_file() for name in PROJECT_FILES) else PLACES[:1]
    for place in places:
        if found := [folder for folder in sorted(Path().glob(place)) if _is_of_this_project(folder)]:
            return found
    return []


def dagster_command() -> str:
    """The commands that run Dagster for the project in the current folder, in backticks. `dg dev` is named only in a
    project or workspace of dg.
    """
    return "`dg dev` (or `s3notify dev`)" if _is_of_dg() else "`s3notify dev`"


def _is_of_dg() -> bool:
    if Path("dg.toml").is_file():
        return True
    try:
        return "dg" in tomllib.loads(Path("pyproject.toml").read_text("utf-8")).get("tool", {})
    except (OSError, ValueError):
        return False


def _is_of_this_project(folder: Path) -> bool:
    above = [parent for parent in folder.parents if parent != Path()]
    others = any((parent / name).exists() for parent in above for name in PROJECT_FILES)
    return folder.is_dir() and not others and folder.resolve() != DEMO_FOLDER


def sources_of(given: str | None = None) -> list[ConfiguredSource]:
    """All sources below the folders. `UsageError` for a file that is not YAML."""
    found: list[ConfiguredSource] = []
    for folder in folders(given):
        for file in sorted(folder.glob("**/defs.yaml")):
            found += _sources_in(folder, file, found)
    return found


def _sources_in(folder: Path, file: Path, project: Sequence[ConfiguredSource]) -> Iterator[ConfiguredSource]:
    for document in documents_of(file):
        if isinstance(document, Mapping) and (attributes := _attributes(file, document)) is not None:
            source = ConfiguredSource(
                folder=folder,
                file=file,
                attributes=attributes,
                type=str(document.get("type", COMPONENT)),
                project=project,
            )
            if missing := [name for name in ("name", "bucket") if name not in source.checked.values]:
                raise UsageError(f"{file}: {missing[0]} is missing: {SETTINGS[missing[0]].about.description}")
            yield source


def _attributes(file: Path, document: Mapping[Any, Any]) -> Mapping[str, Any] | None:
    """The attributes of a source; None for another component. `UsageError` if a component of this package has no
    attributes.
    """
    attributes = document.get("attributes")
    if not str(document.get("type", "")).startswith(_OURS):
        is_source = isinstance(attributes, Mapping) and {"name", "bucket"} <= attributes.keys()
        return attributes if is_source else None
    if others := [str(key) for key in document if key not in _OF_DOCUMENT]:
        raise UsageError(f"{file}: {unknown(others[0], _OF_DOCUMENT)}")
    if not isinstance(attributes, Mapping):
        raise UsageError(f"{file}: attributes is missing")
    return attributes
