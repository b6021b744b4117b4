"""Reads a project's YAML as untrusted text: nothing in it is run, and time and memory are bounded.

Three of Dagster's expressions are evaluated here, without a template engine: `{{ env.NAME }}`, `{{ env('NAME') }}` and
`{{ env('NAME', default) }}`. Any other expression is refused. A variable with the name of a secret
is refused too, because settings are printed and sent. Errors name file and setting, and never a variable's value.
"""

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import MAX_DEFS_BYTES, MAX_DEFS_NODES

if TYPE_CHECKING:
    import yaml

_SECRET: Final = re.compile(
    r"SECRET|PASSW|TOKEN|CREDENTIAL|(?:(?<!KMS_)KEY(?!_FILE)|PAT)(?![A-Z])", re.IGNORECASE
)
"""Matches names of variables that must not be used in a setting. The id of a KMS key and the path of a key file are not
secrets.
"""

_EVALUATED: Final = "{{ env.NAME }}, {{ env('NAME') }} and {{ env('NAME', default) }}"


def documents_of(file: Path) -> list[Any]:
    """The documents of a YAML file. `UsageError`, which names the file, if it is not YAML or exceeds the limits."""
    import yaml

    try:
        if not file.is_file():
            raise UsageError(f"{file}: not a regular file: remove it")
        with file.open("rb") as opened:
            body = opened.read(MAX_DEFS_BYTES + 1)
        if len(body) > MAX_DEFS_BYTES:
            raise UsageError(f"{file}: has more than {MAX_DEFS_BYTES} bytes: split it")
        text = body.decode()
        _refuse_expansion(file, list(yaml.compose_all(text, yaml.SafeLoader)))
        return list(yaml.safe_load_all(text))
    except RecursionError as error:
        raise UsageError(f"{file}: is nested too deeply: write it flat") from error
    except (yaml.YAMLError, ValueError, OSError) as error:  # a date that does not exist is a ValueError
        raise UsageError(f"{file}: {error}") from error


def evaluated(file: Path, name: str, text: str) -> Any:
    """The value of a setting's text, the same as in Dagster. `UsageError` names file and setting."""
    from jinja2 import Environment, TemplateError
    from jinja2.nativetypes import native_concat

    try:
        template = Environment().parse(text)  # noqa: S701 - nothing is rendered
        return native_concat(_values(template.body))
    except (TemplateError, UsageError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise UsageError(
            f"{file}: {name}: {text[:200]!r} cannot be evaluated: {why} (commands evaluate {_EVALUATED}; "
            "write that, or the value itself)"
        ) from error


def _values(body: Sequence[Any]) -> Iterator[Any]:
    from jinja2 import nodes

    for output in body:
        if not isinstance(output, nodes.Output):
            raise UsageError(f"a {type(output).__name__.lower()} block is not a lookup")
        for node in output.nodes:
            yield node.data if isinstance(node, nodes.TemplateData) else _value(node)


def _value(node: Any) -> Any:
    from jinja2 import nodes

    match node:
        case nodes.Const():
            return node.value
        case nodes.Getattr(node=nodes.Name(name="env"), attr=name):
            return _variable(name)
        case nodes.Call(node=nodes.Name(name="env"), kwargs=[], dyn_args=None, dyn_kwargs=None):
            match node.args:
                case [nodes.Const(value=str(name))]:
                    return _variable(name)
                case [nodes.Const(value=str(name)), default]:
                    return _variable(name, _value(default))
    raise UsageError("it is not a lookup of an environment variable")


def _variable(name: str, default: Any = ...) -> Any:
    if _SECRET.search(name):
        raise UsageError(
            f"{name} is the name of a secret, and settings must not contain secrets: name the variable in "
            "a …_env setting"
        )
    found = os.environ.get(name, default)
    if found is ...:
        raise UsageError(f"there is no environment variable {name}")
    return found


def _refuse_expansion(file: Path, documents: Sequence["yaml.Node | None"]) -> None:
    """Refuses aliases that make a small file very large or endless."""
    sizes: dict[int, int | None] = {}

    def size(node: "yaml.Node") -> int:
        known = sizes.setdefault(id(node), None) if id(node) in sizes else 0
        if known is None:
            raise UsageError(
                f"{file}: {node.start_mark.line + 1}: an anchor contains an alias of itself: remove it"
            )
        if known:
            return known
        sizes[id(node)] = None
        inner = node.value if isinstance(node.value, list) else ()
        total = 1
        for child in inner:
            total += sum(map(size, child)) if isinstance(child, tuple) else size(child)
        if total > MAX_DEFS_NODES:
            raise UsageError(
                f"{file}: has more than {MAX_DEFS_NODES} values after resolving aliases: write less"
            )
        sizes[id(node)] = total
        return total

    for document in documents:
        if document is not None:
            size(document)
