"""The attributes of a source in YAML, each declared once.

Commands check a file against these attributes without Dagster. The component (`orchestration.component`) has a field
for each attribute.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Annotated, Any

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import SESSIONS_MAX
from s3notify_platform.kernel.setting import About, Later, Setting, named, unknown, values_in
from s3notify_platform.local.cron import check_cron
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.settings import (
    UNGROUPED,
    DynamoSettings,
    LatestSettings,
    S3Settings,
    TopicSizeSettings,
)


@dataclass(frozen=True, kw_only=True)
class SparkSettings:
    """Where Spark runs. Default: embedded, `local[*]`."""

    master: Annotated[str | None, About("Spark master, like spark://host:7077, yarn; default: local[*]")] = (
        None
    )
    remote: Annotated[str | None, About("Spark Connect server to use instead, like sc://host:15002")] = None
    max_sessions: Annotated[
        int,
        About(
            "Maximum number of Spark sessions of a machine's runs at a time, for all sources together; further runs "
            "wait. Sessions of warm workers do not count. No effect with remote",
            unit="sessions",
            minimum=1,
        ),
    ] = SESSIONS_MAX
    config: Annotated[dict[str, Any], About("Further Spark properties")] = field(default_factory=dict)


def _check_resources(given: Mapping[str, Any]) -> None:
    if others := given.keys() - {"spark", "s3", "dynamodb"}:
        raise UsageError(f"{sorted(others)}: only spark, s3 and dynamodb may be replaced")
    if wrong := [key for key in given.values() if not isinstance(key, str)]:
        raise UsageError(f"{wrong[0]!r}: give the key of a resource")


@dataclass(frozen=True, kw_only=True)
class SourceAttributes:
    """The attributes of a source, except its settings and its services."""

    transform: Annotated[
        str | None,
        About(
            "Function (DataFrame) -> DataFrame that keeps _slot, _key, _etag, _offset, like "
            "defs.orders.assets.clean"
        ),
    ] = None
    slot_assets: Annotated[
        tuple[str, ...], About("Import paths of the source's s3_slot_asset functions")
    ] = ()
    description: Annotated[
        str | None, About("Description of the source's asset, like: Orders of the shop")
    ] = None
    owners: Annotated[
        tuple[str, ...], About("Owners of the source's assets: user@example.com or team:name")
    ] = ()
    group: Annotated[str | None, About("Group of the source's assets, like landing; default: {name}")] = None
    interval_seconds: Annotated[
        int,
        About(
            "Interval between ticks of the sensor; Dagster's own loop takes 5 seconds",
            unit="seconds",
            minimum=1,
        ),
    ] = 4
    poll_seconds: Annotated[
        float,
        About(
            "Interval between polls within a tick. A tick polls only once if this is 0, if ticks are more "
            "than 5 s apart, if the code location has more than 20 sources, or if dagster.yaml lacks "
            "sensors: {use_threads: true}",
            unit="seconds",
            minimum=0,
        ),
    ] = 0.3
    sweep_cron: Annotated[
        str,
        About(
            "Cron schedule (UTC) of the sweep, which compares all objects of the source with the state; the "
            "first batch does that too",
            check=check_cron,
        ),
    ] = "0 3 * * *"
    fresh_seconds: Annotated[
        float,
        About(
            "Age of an uncommitted change at which the freshness policy of {name}_queue "
            "fails. The policy may fail later, by up to a fifth of this time",
            unit="seconds",
            minimum=0.001,
        ),
    ] = 900.0
    running: Annotated[bool, About("If true, sensors and automation are on from the start")] = True
    run_tags: Annotated[
        dict[str, Any],
        About(
            "Tags of the runs that the source's sensors and jobs start, like dagster-k8s/config with the pod's memory"
        ),
    ] = field(default_factory=dict)
    op_tags: Annotated[
        dict[str, Any],
        About("Tags of the source's steps with Spark, like dagster-k8s/config if each step is a pod"),
    ] = field(default_factory=dict)
    pool: Annotated[
        str | None,
        About(
            "Dagster pool of the source's steps with Spark, like spark; sources in a pool share its limit, "
            "which is set in the UI or in dagster.yaml"
        ),
    ] = None
    resources: Annotated[
        dict[str, Any],
        About(
            "Keys of the project's own resources to use instead of the default ones: spark (a "
            "PySparkResource that starts on first use), s3 (an S3Resource without keys), dynamodb (a "
            "DynamoTables). Default: {name}_spark, {name}_s3 and {name}_dynamodb, which are made from the "
            "groups s3, dynamodb and spark. Commands cannot see these resources, so they also need the groups",
            check=_check_resources,
        ),
    ] = field(default_factory=dict)
    latest: Annotated[
        LatestSettings | None,
        About(
            "Asset {name}_latest with the newest row of each key, like {key: order_id, order_by: updated_at}"
        ),
    ] = None
    # A group whose keys are all commented out is null in YAML.
    s3: Annotated[S3Settings | None, About("How to reach S3")] = None
    dynamodb: Annotated[DynamoSettings | None, About("DynamoDB tables; default: no tables")] = None
    spark: Annotated[SparkSettings | None, About("Where Spark runs; default: embedded")] = None


def imported(path: str) -> Any:
    """The object that an import path names. `UsageError` if there is no such object."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"cannot import {path!r}: {error}; give the full path of a function") from error


def _unknown(name: str) -> str:
    """The error message for an unknown attribute."""
    known = attributes_of(*SERVICES)
    groups = {group: setting.group for group, setting in known.items() if setting.group is not None}
    forms = [f"{group}: {{{name}: …}}" for group, kind in groups.items() if name in named(kind)]
    if forms:
        return f"{name}: this setting is part of a group: write {' or '.join(forms)}"
    return unknown(name, [*known])


def attributes_of(*services: str) -> dict[str, Setting]:
    """All attributes of a source by name, with a group for each of these services. A service is off if its group is
    missing.
    """
    found = {**named(*UNGROUPED, TopicSizeSettings, BatchSettings, SourceAttributes)}
    for name in services:
        kind, about = SERVICES[name].settings() | None, About(SERVICES[name].summary.removesuffix("."))
        found[name] = Setting(name=name, kind=kind, default=None, about=about)
    return found


@dataclass(frozen=True)
class Attributes:
    """The attributes in a file, checked and converted to their types. A group is a mapping of the given values.

    Values with an expression that cannot be evaluated here are `Later`.
    """

    values: Mapping[str, Any]

    @classmethod
    def of(
        cls, given: Mapping[Any, Any], evaluate: Callable[[str, str], Any], *, ours: bool = True
    ) -> "Attributes":
        """Checks the attributes in a file. `UsageError` has a line for each unknown name and each wrong value.

        `evaluate(name, text)` returns the value of a text that may be an expression. If `evaluate` raises `UsageError`,
        the error is raised later, when that attribute is read. With `ours` False, the file's component is defined
        outside this package, and unknown keys are ignored.
        """
        # A service's module is imported only if the file names it.
        known = attributes_of(*(name for name in SERVICES if name in given))
        if ours and (others := [str(name) for name in given if name not in known]):
            raise UsageError("\n".join(_unknown(name) for name in others))
        taken = {name: _evaluated(raw, name, evaluate) for name, raw in given.items() if name in known}
        own = {name: setting for name, setting in known.items() if name in taken}
        return cls(values_in(taken, own))

    def get(self, name: str) -> Any:
        """The value of an attribute; None if the file does not have it. `UsageError` if the value cannot be evaluated
        here.
        """
        return known_now(self.values.get(name))


def known_now(value: Any) -> Any:
    """The value. `UsageError` if the value, or a part of it, cannot be evaluated here."""
    match value:
        case Later():
            raise value.why
        case Mapping():
            for each in value.values():
                known_now(each)
        case list() | tuple():
            for each in value:
                known_now(each)
    return value


def is_expression(text: str) -> bool:
    """True if Jinja would change a text. Other texts are used as written."""
    return any(mark in text for mark in ("{{", "{%", "{#"))


def as_text(value: Any) -> Any:
    """The value of an expression. A number becomes a text, because a setting of any type accepts a text like "7"."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


def _evaluated(raw: Any, at: str, evaluate: Callable[[str, str], Any]) -> Any:
    """The value with its expressions evaluated. `Later` replaces an expression that cannot be evaluated here."""
    match raw:
        case str() if not is_expression(raw):
            return raw
        case str():
            try:
                return as_text(evaluate(at, raw))
            except UsageError as error:
                return Later(why=error)
        case Mapping():
            return {key: _evaluated(each, f"{at}.{key}", evaluate) for key, each in raw.items()}
        case list():
            return [_evaluated(each, f"{at}.{n}", evaluate) for n, each in enumerate(raw)]
        case _:
            return raw
