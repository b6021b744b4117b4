"""Declared settings (`setting`) as fields of the component and of the IO manager."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from types import MappingProxyType
from typing import Annotated, Any

import dagster as dg
from pydantic import BaseModel, Field

from s3notify_platform.setting import settings_of


def described(description: str, choices: Sequence[str] = ()) -> Any:
    """A description for `Annotated`, and the choices. Dagster drops a `Field`'s own description if it has a default."""
    return dg.Resolver.default(
        description=description, json_schema_extra={"enum": list(choices)} if choices else None
    )


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
        text = setting.help
        found[name] = (
            Annotated[setting.kind, described(text, setting.choices)],
            Field(description=text, **more),
        )
    return found


def values_of(model: BaseModel, *declared: type) -> dict[str, Any]:
    """The values of these settings in a model that has their fields, by the settings' names."""
    fields = {info.alias or name: name for name, info in type(model).model_fields.items()}
    return {one.name: getattr(model, fields[one.name]) for one in settings_of(*declared)}
