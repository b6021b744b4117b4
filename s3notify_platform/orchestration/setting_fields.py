"""Models that are declared without Dagster (`local.attributes`, services) as classes that Dagster fills from YAML."""

from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import dagster as dg
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, create_model

from s3notify_platform.local.attributes import is_expression
from s3notify_platform.setting import Setting


class _FromYaml(BaseModel, dg.Resolvable):
    # An expression gives the number 1 for the text "1", and a string field may get it.
    model_config = ConfigDict(populate_by_name=True, coerce_numbers_to_str=True)


@lru_cache(maxsize=64)
def resolvable(model: type[BaseModel]) -> Any:
    """The same model as a class that Dagster fills from YAML, and whose descriptions and choices it shows.

    A text that is no expression is taken as it is written: Dagster alone would make the number 1000 of "1_000".
    """
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        kind, is_group = _kind(info.annotation)
        setting = next((one for one in info.metadata if isinstance(one, Setting)), None)
        limits = [one for one in info.metadata if one is not setting]
        checks = [AfterValidator(_of_values(kind, limits))] if limits else []
        # Dagster drops a field's own description if it has a default.
        shown = _shown(info.description or "", setting.choices if setting else (), is_group=is_group)
        more: dict[str, Any] = {} if info.is_required() else {"default": info.default}
        fields[name] = (
            Annotated[kind, *checks, shown],
            Field(alias=info.alias, description=info.description, **more),
        )
    bases: Any = (model, _FromYaml)
    return create_model(
        model.__name__, __base__=bases, __module__=model.__module__, __doc__=model.__doc__, **fields
    )


def _of_values(kind: Any, limits: Sequence[Any]) -> Callable[[Any], Any]:
    """A check of these limits. Dagster applies it to the texts of YAML too, before it evaluates them: they wait."""
    adapter = TypeAdapter(Annotated[kind, *limits])

    def check(value: Any) -> Any:
        waits = isinstance(value, str) and (kind is not str or is_expression(value))
        return value if waits else adapter.validate_python(value)

    return check


def _kind(annotation: Any) -> tuple[Any, bool]:
    """The type with groups as classes that Dagster fills, and whether it is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return resolvable(annotation), True
    if get_origin(annotation) in (Union, UnionType):
        found = [_kind(each) for each in get_args(annotation)]
        return reduce(or_, [kind for kind, _ in found]), any(is_group for _, is_group in found)
    return annotation, False


def _shown(description: str, choices: Sequence[str], *, is_group: bool) -> Any:
    if is_group:
        return dg.Resolver.default(description=description)
    return dg.Resolver(
        _as_written,
        description=description,
        json_schema_extra={"enum": list(choices)} if choices else None,
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
        case _:
            return context.resolve_value(value)
