"""The sources that a project's YAML defines, read without Dagster: what commands take their options from.

The folder is that of `--defs`, else of S3NOTIFY_DEFS, else that of the project where the command runs: its `defs`, or,
beside a `pyproject.toml`, also `src/*/defs` or `*/defs`, but for those of another project in it. Reading runs nothing
of what is found: `defs_yaml`.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from s3notify_platform.errors import UsageError
from s3notify_platform.ingest.settings import (
    DEFS_VARIABLE,
    SETTINGS,
    LeaseTimeSettings,
    TableSettings,
)
from s3notify_platform.local.defs_yaml import documents_of, evaluated
from s3notify_platform.setting import settings_of
from s3notify_platform.stores.config import (
    ACCESS,
    OF_BUCKET,
    QUEUE_PREFIX,
    DynamoConfig,
    S3Config,
    default_region,
)

if TYPE_CHECKING:
    from s3notify_platform.ingest.source import Source

PLACES: Final = ("defs", "src/*/defs", "*/defs")
PROJECT_FILES: Final = ("pyproject.toml", "dg.toml")
"""A folder with one of these is a project."""

DEMO_FOLDER: Final = Path(__file__).resolve().parent.parent / "defs"
FIRST_SOURCE: Final = """No source is defined. Write defs/orders/defs.yaml:

    type: s3notify_platform.S3NotifyComponent
    attributes:
      name: orders
      bucket: YOUR-BUCKET
      prefix: raw/orders/

Then reload, or start `s3notify dev`. What it needs of the bucket: `s3notify doctor orders`."""
_MORE: Final = ("transform", "list_seconds")
"""Attributes besides the settings that a command takes."""

_OF_PARTS: Final = {
    "endpoint_url", "region_name", "profile_name", *ACCESS, *OF_BUCKET, "master", "remote",
    *(one.name for one in settings_of(TableSettings, LeaseTimeSettings)),
}  # fmt: skip
"""What a command takes of `s3`, `dynamodb` and `spark`."""


@dataclass(frozen=True, kw_only=True)
class ConfiguredSource:
    """One source as a file below `folder` has it. `attributes` may have expressions, which `values` evaluates."""

    folder: Path
    file: Path
    attributes: Mapping[str, Any]

    @classmethod
    def named(cls, name: str) -> "ConfiguredSource":
        """One that no file defines: the command line says all of it."""
        return cls(folder=Path(), file=Path(), attributes={"name": name})

    @property
    def name(self) -> str:
        """The source's name."""
        return str(self._value("name", self.attributes["name"]))

    @property
    def buckets(self) -> set[Any]:
        """The watched bucket, and that of the platform's own objects."""
        return {self.values.get("bucket"), self.values.get("platform_bucket")} - {None}

    @cached_property
    def values(self) -> dict[str, Any]:
        """Its settings, by the names of the commands' parameters."""
        names = self.attributes.keys() & {*SETTINGS, *_MORE}
        found = {name: self._value(name, value) for name in names if _plain(value := self.attributes[name])}
        found["keyspace_prefix"] = found.get("keyspace_prefix") or (
            f"{found.get('platform_prefix') or f'_s3notify/{self.name}/'}keyspace/"
        )
        found.setdefault("queue_prefix", QUEUE_PREFIX)
        s3, dynamodb, spark = self._part("s3"), self._part("dynamodb"), self.attributes.get("spark")
        conf = spark.get("config") if isinstance(spark, Mapping) else None
        renamed = {
            "endpoint_url": s3.get("endpoint_url"),
            "region": s3.get("region_name"),
            **{one.name: dynamodb.get(one.name) for one in settings_of(TableSettings, LeaseTimeSettings)},
            "dynamodb_endpoint_url": dynamodb.get("endpoint_url"),
            "master": self._part("spark").get("master"),
            "remote": self._part("spark").get("remote"),
            "confs": [f"{name}={value}" for name, value in _flat(conf or {})],
        }
        return {key: value for key, value in (found | renamed).items() if value is not None}

    @property
    def keyspace(self) -> tuple[str, str]:
        """The prefix of its signals, and that of its keys."""
        return self.values["keyspace_prefix"], self.values.get("prefix", "")

    def source(self, **given: Any) -> "Source":
        """The source, with other settings where they are given. `UsageError` for those that cannot be."""
        from s3notify_platform.ingest.source import Source

        values, s3, dynamodb = self.values | given, self.access("s3"), self.access("dynamodb")
        if "platform_prefix" in given and not {"keyspace_prefix"} & {*given, *self.attributes}:
            values.pop("keyspace_prefix")  # which was made from another one
        region = values.get("region") or default_region()
        settings: dict[str, Any] = {name: values[name] for name in SETTINGS if name in values}
        settings |= {
            name: DynamoConfig(
                table=settings[name],
                endpoint_url=values.get("dynamodb_endpoint_url"),
                **{"region": region} | dynamodb,
            )
            for name in ("records_table", "lease_table")
            if name in settings
        }
        bucket = S3Config(
            bucket=settings.pop("bucket"), endpoint_url=values.get("endpoint_url"), region=region, **s3
        )
        return Source.of(bucket=bucket, **settings)

    def access(self, service: str) -> dict[str, Any]:
        """How `s3` or `dynamodb` is reached, as fields of `Access`: region and whose keys."""
        part = self._part(service)
        found = {"region": part.get("region_name")} if service == "dynamodb" else {}
        found |= {name: part.get("profile_name" if name == "profile" else name) for name in ACCESS}
        found |= {name: part.get(name) for name in OF_BUCKET if service == "s3"}
        return {key: value for key, value in found.items() if value is not None}

    def _part(self, name: str) -> dict[str, Any]:
        given = self.attributes.get(name)
        if not isinstance(given, Mapping):
            return {}
        return {
            key: self._value(f"{name}.{key}", value)
            for key, value in given.items()
            if key in _OF_PARTS and _plain(value)
        }

    def _value(self, name: str, value: Any) -> Any:
        return evaluated(self.file, name, value) if isinstance(value, str) and "{" in value else value


def _flat(given: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in given.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


def folders(given: str | None = None) -> list[Path]:
    """The folders that hold definitions; `UsageError` if a given one does not exist."""
    if given := given or os.environ.get(DEFS_VARIABLE):
        if not Path(given).is_dir():
            raise UsageError(f"{given}: there is no such folder; give one with SOURCE/defs.yaml in it")
        return [Path(given)]
    places = PLACES if any(Path(name).is_file() for name in PROJECT_FILES) else PLACES[:1]
    for place in places:
        if found := [folder for folder in sorted(Path().glob(place)) if _is_of_this_project(folder)]:
            return found
    return []


def _is_of_this_project(folder: Path) -> bool:
    above = [parent for parent in folder.parents if parent != Path()]
    others = any((parent / name).exists() for parent in above for name in PROJECT_FILES)
    return folder.is_dir() and not others and folder.resolve() != DEMO_FOLDER


def sources_of(given: str | None = None) -> list[ConfiguredSource]:
    """All sources below the folders; `UsageError` for a file that is no YAML."""
    return [
        source
        for folder in folders(given)
        for file in sorted(folder.glob("**/defs.yaml"))
        for source in _sources_in(folder, file)
    ]


def _sources_in(folder: Path, file: Path) -> Iterator[ConfiguredSource]:
    for document in documents_of(file):
        attributes = document.get("attributes") if isinstance(document, Mapping) else None
        if isinstance(attributes, Mapping) and {"name", "bucket"} <= attributes.keys():
            yield ConfiguredSource(folder=folder, file=file, attributes=attributes)
