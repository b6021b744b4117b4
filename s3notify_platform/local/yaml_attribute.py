"""Adds or removes one attribute in a source's YAML, and keeps everything else as written, including comments.

The new text is parsed again. If anything but this attribute would change, nothing is written.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.defs_yaml import documents_of

if TYPE_CHECKING:
    import yaml

Value = Mapping[str, str]


def line_of(name: str, value: Value) -> str:
    """The attribute as one line of YAML. Pure."""
    import yaml

    text = yaml.safe_dump(dict(value), default_flow_style=True, sort_keys=False, width=10_000)
    return f"{name}: {text.strip()}"


def add_attribute(file: Path, source: str, name: str, value: Value) -> bool:
    """Adds `name: value` to the source's attributes in one line. Returns False, and writes nothing, if the attribute
    has another value, or if the attributes are not written line by line.
    """
    documents = documents_of(file)
    number = _number_of(documents, source)
    if number is None or name in documents[number]["attributes"]:
        return number is not None and documents[number]["attributes"][name] == value
    node = _attributes(file, number)
    if node is None or node.flow_style or not node.value:
        return False
    lines = file.read_text().splitlines(keepends=True)
    at = _end_of(node)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    lines.insert(at, f"{' ' * node.value[0][0].start_mark.column}{line_of(name, value)}\n")
    documents[number]["attributes"][name] = dict(value)
    return _replaced(file, "".join(lines), documents)


def remove_attribute(file: Path, source: str, name: str, value: Value) -> bool:
    """Removes the line that `add_attribute` added. Returns False, and writes nothing, if the file does not have exactly
    that line.
    """
    documents = documents_of(file)
    number = _number_of(documents, source)
    if number is None or documents[number]["attributes"].get(name) != value:
        return False
    node = _attributes(file, number)
    keys = [key for key, _ in node.value if key.value == name] if node and not node.flow_style else []
    lines = file.read_text().splitlines(keepends=True)
    if not keys or lines[keys[0].start_mark.line].strip() != line_of(name, value):
        return False
    del lines[keys[0].start_mark.line]
    del documents[number]["attributes"][name]
    return _replaced(file, "".join(lines), documents)


def _number_of(documents: list[Any], source: str) -> int | None:
    """The index of the YAML document that defines the source; None if there is no such document."""
    for number, document in enumerate(documents):
        attributes = document.get("attributes") if isinstance(document, Mapping) else None
        if isinstance(attributes, Mapping) and attributes.get("name") == source:
            return number
    return None


def _attributes(file: Path, number: int) -> "yaml.MappingNode | None":
    import yaml

    document = list(yaml.compose_all(file.read_text(), yaml.SafeLoader))[number]
    pairs = document.value if isinstance(document, yaml.MappingNode) else ()
    found = next((value for key, value in pairs if key.value == "attributes"), None)
    return found if isinstance(found, yaml.MappingNode) else None


def _end_of(node: "yaml.Node") -> int:
    """The number of the line after the node."""
    while isinstance(node.value, list) and node.value and not getattr(node, "flow_style", False):
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.line + bool(node.end_mark.column))


def _replaced(file: Path, text: str, documents: list[Any]) -> bool:
    """Replaces the file by this text if the text contains exactly these documents; True if the file was replaced."""
    place = file.resolve()
    fresh = place.with_name(f".{place.name}.new")
    fresh.write_text(text)
    try:
        if documents_of(fresh) != documents:
            return False
        fresh.chmod(place.stat().st_mode & 0o7777)
        os.replace(fresh, place)  # noqa: PTH105 - the same call as everywhere
    except UsageError:
        return False
    finally:
        fresh.unlink(missing_ok=True)
    return True
