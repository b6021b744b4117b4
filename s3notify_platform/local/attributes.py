"""The attributes of a source in YAML, each declared once: commands check a file by them without Dagster, and the
component (`orchestration.component`) is the same model, filled by Dagster.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any, Final, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.errors import UsageError
from s3notify_platform.limits import SESSIONS_MAX
from s3notify_platform.local.cron import check_cron
from s3notify_platform.setting import Setting, settings_of
from s3notify_platform.source.settings import (
    SOURCE,
    BatchSettings,
    LeaseTimeSettings,
    TableSettings,
    TopicSizeSettings,
)

_SHOWN_MAX: Final = 100


def settings_fields(*declared: type, renamed: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Fields for pydantic's `create_model`, one for each setting that these dataclasses declare.

    A setting whose name the model uses for something else has a field of another name (`renamed`, or `row_{name}`
    where it is pydantic's), and its own as alias.
    """
    found: dict[str, Any] = {}
    for setting in settings_of(*declared):
        more: dict[str, Any] = {} if setting.default is MISSING else {"default": setting.default}
        name = f"row_{setting.name}" if hasattr(BaseModel, setting.name) else setting.name
        name = renamed.get(setting.name, name)
        if name != setting.name:
            more["alias"] = setting.name
        found[name] = (Annotated[setting.kind, setting], Field(description=setting.help, **more))
    return found


def values_of(model: BaseModel, *declared: type) -> dict[str, Any]:
    """The values of these settings in a model that has their fields, by the settings' names."""
    fields = _fields(type(model))
    return {one.name: getattr(model, fields[one.name][0]) for one in settings_of(*declared)}


class _Part(BaseModel):
    """Attributes of one group. Unknown ones are refused: among them secrets that are given by value."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class SparkSettings(_Part):
    """Where Spark runs. Default: embedded, `local[*]`."""

    master: str | None = Field(
        default=None, description="Master, like spark://host:7077, yarn; default: local[*]"
    )
    remote: str | None = Field(default=None, description="Spark Connect instead, like sc://host:15002")
    max_sessions: int = Field(
        default=SESSIONS_MAX,
        ge=1,
        description="Spark sessions that runs of a machine have at once, besides those of warm workers, whatever the "
        "number of sources; further runs wait. Without effect for remote. Default: 4",
    )
    config: dict[str, Any] = Field(default={}, description="Further Spark properties")


class AwsSettings(_Part):
    """How to reach a service. Default: boto3's own chain (environment, profile, instance role).

    Other credentials are given by the names of environment variables or of a profile, so that no secret is ever part
    of the definitions, which Dagster shows, or of Spark's tasks. Dagster's processes and Spark's workers each read
    them for themselves; a profile that changes is read again within a minute, variables only at a start.
    """

    endpoint_url: str | None = Field(
        default=None, description="Endpoint, like http://127.0.0.1:9000; default: AWS_ENDPOINT_URL, or AWS"
    )
    region_name: str | None = Field(
        default=None,
        description="Region, like eu-west-1; default: AWS_REGION, or the profile's; of dynamodb: s3's",
    )
    profile_name: str | None = Field(
        default=None, description="Profile of AWS's files, like landing, on every machine"
    )
    access_key_id_env: str | None = Field(
        default=None, description="Environment variable with the key id, like MY_KEY_ID"
    )
    secret_access_key_env: str | None = Field(
        default=None, description="Environment variable with the secret, like SECRET"
    )
    session_token_env: str | None = Field(
        default=None, description="Environment variable with the token, like MY_TOKEN"
    )
    role_arn: str | None = Field(
        default=None, description="Role to assume, like arn:aws:iam::123456789012:role/landing"
    )
    external_id: str | None = Field(
        default=None, description="External id that the role's owner asks for, like acme-7"
    )

    def fields(self) -> dict[str, Any]:
        """The fields as the resources name them; variables are read where a request is sent."""
        return {name: getattr(self, name) for name in AwsSettings.model_fields}


class S3Settings(AwsSettings):
    """How to reach the buckets."""

    requester_pays: bool = Field(default=False, description="Say with each request that we pay for it")
    kms_key_id: str | None = Field(
        default=None,
        description="Key of KMS for what the platform writes, like alias/platform; default: the bucket's",
    )

    def fields(self) -> dict[str, Any]:
        """See `AwsSettings.fields`."""
        return {name: getattr(self, name) for name in S3Settings.model_fields}


_Tables = create_model("_Tables", __base__=AwsSettings, **settings_fields(TableSettings, LeaseTimeSettings))


class DynamoSettings(_Tables):  # type: ignore[misc,valid-type]
    """DynamoDB tables, created by `s3notify init`. Default: none; everything is on the bucket."""


_Settings = create_model(
    "_Settings", __base__=_Part, **settings_fields(*SOURCE, TopicSizeSettings, BatchSettings)
)
"""The declared settings, a field for each."""


def _check_resources(given: dict[str, str]) -> dict[str, str]:
    if unknown := given.keys() - {"spark", "s3", "dynamodb"}:
        raise UsageError(f"resources {sorted(unknown)}: only spark, s3 and dynamodb may be replaced")
    return given


class SourceAttributes(_Settings):  # type: ignore[misc,valid-type]
    """The attributes of a source, without those of services (`with_services`)."""

    transform: str | None = Field(
        default=None,
        description="(DataFrame) -> DataFrame that keeps _slot, _key, _etag, _offset, like defs.orders.assets.clean",
    )
    slot_assets: list[str] = Field(
        default=[], description="Import paths of s3_slot_asset functions of this source"
    )
    description: str | None = Field(
        default=None, description="Description of the source's asset, like: Orders of the shop"
    )
    owners: list[str] = Field(default=[], description="Owners of its assets: user@example.com or team:name")
    group: str | None = Field(default=None, description="Group of its assets, like landing; default: {name}")
    interval_seconds: int = Field(
        default=4, ge=1, description="Seconds between ticks of the sensor; Dagster's own loop takes 5"
    )
    poll_seconds: float = Field(
        default=0.3,
        ge=0,
        description="Seconds between polls within a tick; a tick polls once if 0, if ticks are more than 5 s apart, if "
        "the code location has more than 20 sources, or if dagster.yaml does not have sensors: {use_threads: true}",
    )
    sweep_cron: Annotated[str, AfterValidator(check_cron)] = Field(
        default="0 3 * * *",
        description="When the sweep compares the whole bucket with the state; once after the first batch, too",
    )
    fresh_seconds: float = Field(
        default=900.0,
        gt=0,
        description="The check of freshness fails if a change is not committed for so long (seconds)",
    )
    running: bool = Field(
        default=True, description="Whether sensors, sweep and automation are on from the start"
    )
    run_tags: dict[str, Any] = Field(
        default={},
        description="Tags of the runs that its sensors, schedules and jobs start, like dagster-k8s/config with the "
        "pod's memory",
    )
    op_tags: dict[str, Any] = Field(
        default={},
        description="Tags of its steps with Spark, like dagster-k8s/config where each step is a pod",
    )
    pool: str | None = Field(
        default=None,
        description="Dagster's pool of its steps with Spark, like spark; sources that name the same one share its "
        "limit, which is set in the UI or in dagster.yaml",
    )
    resources: Annotated[dict[str, str], AfterValidator(_check_resources)] = Field(
        default={},
        description="Keys of the project's own resources to use instead: spark (a PySparkResource that starts on first "
        "use), s3 (an S3Resource without keys), dynamodb (a DynamoTables). Default: {name}_spark, {name}_s3 and "
        "{name}_dynamodb, which are made from what follows",
    )
    # Without a key below them they are null, as where all are commented out.
    s3: S3Settings | None = Field(default=S3Settings(), description="How to reach S3")
    dynamodb: DynamoSettings | None = Field(
        default=DynamoSettings(), description="DynamoDB tables; default: none"
    )
    spark: SparkSettings | None = Field(
        default=SparkSettings(), description="Where Spark runs; default: embedded"
    )


def with_services(base: type[BaseModel], names: Sequence[str]) -> type[BaseModel]:
    """The model with a field for each of these registered services: its settings, or None, which leaves it off."""
    fields: dict[str, Any] = {
        name: (SERVICES[name].settings() | None, Field(default=None, description=SERVICES[name].summary))
        for name in names
    }
    return create_model(base.__name__, __base__=base, __module__=__name__, __doc__=base.__doc__, **fields)


class _Assigned(SourceAttributes):
    """The same, to be checked one by one."""

    model_config = ConfigDict(validate_assignment=True)


# Services' modules are imported only for a file that names them.
@lru_cache(maxsize=16)
def _model_for(services: tuple[str, ...]) -> type[BaseModel]:
    return with_services(_Assigned, services)


@dataclass(frozen=True, kw_only=True)
class Attributes:
    """The attributes that a file gives, checked and of their types."""

    values: Mapping[str, Any]
    unknown: Mapping[str, Mapping[str, UsageError]] = field(default_factory=dict)
    """Attributes with an expression that cannot be evaluated here, and why, by their keys; "" for their own."""

    @classmethod
    def of(
        cls, given: Mapping[Any, Any], evaluate: Callable[[str, str], Any], *, ours: bool = True
    ) -> "Attributes":
        """Check what a file has. `UsageError` with a line for each key that there is not, and value that cannot be.

        `evaluate(name, text)` gives the value of a text that may be an expression, or raises `UsageError`: then only
        reading that attribute does. Of a component that is not `ours`, keys that ours does not have are left out.
        """
        model = _model_for(tuple(name for name in SERVICES if name in given))
        fields, checked = _fields(model), model.model_construct()
        values: dict[str, Any] = {}
        unknown: dict[str, Mapping[str, UsageError]] = {}
        problems: list[str] = []
        for name, raw in given.items():
            if name not in fields:
                problems += [no_key(str(name), (*fields, *SERVICES))] if ours else []
                continue
            gaps: dict[tuple[Any, ...], UsageError] = {}
            value = _evaluated(raw, (name,), evaluate, gaps)
            attribute, info = fields[name]
            try:
                setattr(checked, attribute, value)
            except ValidationError as error:
                problems += _problems(error, name, info, raw, gaps)
            else:
                values[name] = getattr(checked, attribute)
                problems += _refusals(values[name], name, info)
            if gaps:
                unknown[name] = {str(path[1]) if len(path) > 1 else "": why for path, why in gaps.items()}
        if problems:
            raise UsageError("\n".join(problems))
        return cls(values=values, unknown=unknown)

    @property
    def names(self) -> set[str]:
        """The attributes that the file has."""
        return {*self.values, *self.unknown}

    def get(self, name: str) -> Any:
        """The value of an attribute, None if the file has none. `UsageError` if it cannot be evaluated here."""
        for error in self.unknown.get(name, {}).values():
            raise error
        return self.values.get(name)

    def part(self, name: str) -> "Part":
        """The keys of a group, like `s3`, without null ones."""
        found, unknown = self.values.get(name), self.unknown.get(name, {})
        given = {} if found is None else found.model_dump(exclude_unset=True, exclude_none=True)
        return Part(given=given, unknown=unknown)


@dataclass(frozen=True, kw_only=True)
class Part:
    """The keys of a group. Commands take some of them alone; the others may say what only Dagster evaluates."""

    given: Mapping[str, Any]
    unknown: Mapping[str, UsageError]

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a key. `UsageError` if it cannot be evaluated here."""
        if error := self.unknown.get(name) or self.unknown.get(""):
            raise error
        return self.given.get(name, default)


def is_expression(text: str) -> bool:
    """Whether Jinja would make something else of a text. Any other is taken as it is written."""
    return any(mark in text for mark in ("{{", "{%", "{#"))


def _fields(model: type[BaseModel]) -> dict[str, tuple[str, FieldInfo]]:
    """By the name in YAML: the model's own name of the field, and the field."""
    return {info.alias or name: (name, info) for name, info in model.model_fields.items()}


def _evaluated(
    raw: Any,
    path: tuple[Any, ...],
    evaluate: Callable[[str, str], Any],
    gaps: dict[tuple[Any, ...], UsageError],
) -> Any:
    """The value with its expressions evaluated; `gaps` has what could not be, by its path."""
    match raw:
        case str() if not is_expression(raw):
            return raw
        case str():
            try:
                value = evaluate(".".join(map(str, path)), raw)
            except UsageError as error:
                gaps[path] = error
                return None
            # An expression gives 7 for the text "7", which a setting of any type takes.
            number = isinstance(value, int | float) and not isinstance(value, bool)
            return str(value) if number else value
        case Mapping():
            found = {key: _evaluated(each, (*path, key), evaluate, gaps) for key, each in raw.items()}
            return {key: each for key, each in found.items() if (*path, key) not in gaps}
        case list():
            return [_evaluated(each, (*path, n), evaluate, gaps) for n, each in enumerate(raw)]
        case _:
            return raw


def _problems(
    error: ValidationError, name: str, info: FieldInfo, raw: Any, gaps: Mapping[tuple[Any, ...], UsageError]
) -> Iterator[str]:
    for each in error.errors(include_url=False):
        path = (name, *each["loc"][1:])
        if any(path[: len(gap)] == gap for gap in gaps):
            continue
        shown = ".".join(map(str, path))
        if each["type"] == "extra_forbidden":
            yield no_key(shown, [f"{name}.{key}" for key in _part_of(info)])
        elif each["type"] == "missing":
            yield f"{shown}: is missing"
        elif isinstance(cause := each.get("ctx", {}).get("error"), UsageError):
            yield f"{shown}: {cause}"
        else:
            reason = each["msg"].partition(" or instance of ")[0]
            yield f"{shown}: {_shown(_at(raw, path[1:]))}{reason[0].lower()}{reason[1:]}"


def _refusals(value: Any, name: str, info: FieldInfo) -> Iterator[str]:
    """For settings: what `Setting.check` refuses of them. Choices that are looked up are `Source`'s to check."""
    if isinstance(value, BaseModel):
        for key, (attribute, of_key) in _fields(type(value)).items():
            yield from _refusals(getattr(value, attribute), f"{name}.{key}", of_key)
    for setting in info.metadata:
        if isinstance(setting, Setting) and value is not None and setting.about.choices is None:
            try:
                setting.check(value)
            except UsageError as error:
                yield f"{name}: {error}"


def _part_of(info: FieldInfo) -> list[str]:
    """The keys of a group."""
    kinds = [info.annotation, *get_args(info.annotation)]
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return [key for model in models for key in _fields(model)]


def no_key(name: str, known: Sequence[str]) -> str:
    """The message for a key that is none of those that are `known`."""
    near = get_close_matches(name, known, n=1)
    return f"{name}: there is no such key; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
    )


def _at(raw: Any, path: Sequence[Any]) -> Any:
    for key in path:
        try:
            raw = raw[key]
        except (LookupError, TypeError):  # pydantic's path has more than the file, like a key of a mapping
            return None
    return raw


def _shown(raw: Any) -> str:
    """A value as the file has it, for a message."""
    return (
        f"{raw!r}: "[:_SHOWN_MAX] if isinstance(raw, str | int | float) else "null: " if raw is None else ""
    )
