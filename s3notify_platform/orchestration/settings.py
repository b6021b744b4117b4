"""Declared settings (`ingest.settings`) as fields of the component and of the IO manager."""

from collections.abc import Sequence
from dataclasses import MISSING
from typing import Annotated, Any, Final

import dagster as dg
from pydantic import BaseModel, Field

from s3notify_platform.ingest.settings import settings_of

_TAKEN: Final = {"commit": "commit_mode"}
"""`SlotIOManager.commit` is what commits."""


def described(description: str, choices: Sequence[str] = ()) -> Any:
    """A description for `Annotated`, and the choices. Dagster drops a `Field`'s own description if it has a default."""
    return dg.Resolver.default(
        description=description, json_schema_extra={"enum": list(choices)} if choices else None
    )


def settings_fields(*declared: type) -> dict[str, Any]:
    """Fields for pydantic's `create_model`, one for each setting that these dataclasses declare."""
    found: dict[str, Any] = {}
    for setting in settings_of(*declared):
        more: dict[str, Any] = {} if setting.default is MISSING else {"default": setting.default}
        name = field_name(setting.name)
        if name != setting.name:
            more["alias"] = setting.name
        text = setting.help
        found[name] = (
            Annotated[setting.kind, described(text, setting.choices)],
            Field(description=text, **more),
        )
    return found


def field_name(setting: str) -> str:
    """The name of the setting's field: its own, or another where pydantic's models, or ours, have that attribute."""
    return f"row_{setting}" if hasattr(BaseModel, setting) else _TAKEN.get(setting, setting)


def values_of(model: BaseModel, *declared: type) -> dict[str, Any]:
    """The values of these settings in a model that has their fields, by the settings' names."""
    return {one.name: getattr(model, field_name(one.name)) for one in settings_of(*declared)}
