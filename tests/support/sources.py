"""Sources that differ from others in a few settings."""

from dataclasses import fields, replace
from typing import Any

from s3notify_platform.source.source import Source


def with_settings(source: Source, **changes: Any) -> Source:
    """The source with these settings of its location or its input."""

    def of(value: Any) -> Any:
        return replace(value, **{f.name: changes.pop(f.name) for f in fields(value) if f.name in changes})

    changed = replace(source, location=of(source.location), input=of(source.input))
    assert not changes, changes
    return changed
