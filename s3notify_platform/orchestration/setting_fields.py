"""Declared settings as fields of Dagster's models. The models are resources, and classes that Dagster fills from a
component's YAML.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from functools import lru_cache
from types import MappingProxyType
from typing import Annotated, Any

import dagster as dg
from pydantic import BaseModel, ConfigDict, Field, create_model

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import Later, Setting, settings_of, values_in
from s3notify_platform.local.attributes import as_text, is_expression


class Checked(BaseModel):
    """A model that refuses wrong names and values of settings with the `UsageError` of `values_in`."""

    def __init__(self, **given: Any) -> None:
        known: dict[str, Setting] = {}
        others: set[str] = set()
        for name, info in type(self).model_fields.items():
            setting = next((one for one in info.metadata if isinstance(one, Setting)), None)
            if setting is None:
                others.add(name)
            else:
                known |= {name: setting, setting.name: setting}
        own = {name: value for name, value in given.items() if name not in others}
        values = values_in({name: _plain(value) for name, value in own.items()}, known)
        values |= {name: own[name] for name, value in values.items() if isinstance(value, Later)}
        super().__init__(**{name: given[name] for name in given.keys() & others}, **values)


def _plain(value: Any) -> Any:
    match value:
        case BaseModel():
            return value.model_dump(exclude_unset=True)
        case dg.EnvVar():
            return Later(why=UsageError("a variable that Dagster looks up when it makes the resource"))
        case _:
            return value


def fields_of(
    settings: Iterable[Setting], renamed: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Any]:
    """Fields for pydantic's `create_model`, one for each setting.

    If the model needs a setting's name for another purpose, the field gets another name, and has the setting's name as
    its alias. `renamed`: the other names of such fields, by the setting's name. If pydantic itself uses a setting's
    name, the field is called `row_{name}`.
    """
    found: dict[str, Any] = {}
    for setting in settings:
        more: dict[str, Any] = {} if setting.default is MISSING else {"default": setting.default}
        name = f"row_{setting.name}" if hasattr(BaseModel, setting.name) else setting.name
        name = renamed.get(setting.name, name)
        if name != setting.name:
            more["alias"] = setting.name
        kind = (
            list[str] if setting.base == tuple[str, ...] else setting.kind
        )  # Dagster's models do not support tuples
        found[name] = (Annotated[kind, setting], Field(description=setting.help, **more))
    return found


def values_of(model: BaseModel, *declared: type) -> dict[str, Any]:
    """The values of these settings, by the settings' names. `model` has a field for each of the settings."""
    fields = {info.alias or name: name for name, info in type(model).model_fields.items()}
    return {one.name: getattr(model, fields[one.name]) for one in settings_of(*declared)}


class _FromYaml(Checked, dg.Resolvable):
    model_config = ConfigDict(populate_by_name=True)


def resolvable(name: str, settings: Sequence[Setting], doc: str | None = None) -> Any:
    """A class with a field for each setting. Dagster fills the fields from YAML, and shows them with descriptions and
    choices.

    A text without a Jinja expression is used exactly as written. Without this class, Dagster would turn "1_000" into
    the number 1000.
    """
    fields: dict[str, Any] = {}
    for setting, (field, (annotation, info)) in zip(settings, fields_of(settings).items(), strict=True):
        if setting.group is None:
            fields[field] = (Annotated[annotation, _shown(setting)], info)
        else:
            # Dagster drops a field's own description if the field has a default.
            kind: Any = group_of(setting.group) | None
            group: Any = Annotated[kind, setting, dg.Resolver.default(description=setting.help)]
            fields[field] = (group, info)
    return create_model(name, __base__=_FromYaml, __module__=__name__, __doc__=doc, **fields)


@lru_cache(maxsize=64)
def group_of(declared: type) -> Any:
    """The class for a group of settings, as `resolvable` makes it."""
    return resolvable(declared.__name__, settings_of(declared), declared.__doc__)


def _shown(setting: Setting) -> dg.Resolver:
    return dg.Resolver(
        _as_written,
        description=setting.help,
        json_schema_extra={"enum": list(setting.choices)} if setting.choices else None,
        inject_before_resolve=False,
    )


def _as_written(context: dg.ResolutionContext, value: Any) -> Any:
    match value:
        case str() if not is_expression(value):
            return value
        case dict():
            return {key: _as_written(context.at_path(key), each) for key, each in value.items()}
        case list() | tuple():
            return [_as_written(context.at_path(n), each) for n, each in enumerate(value)]
        case str():
            return as_text(context.resolve_value(value))
        case _:
            return context.resolve_value(value)
