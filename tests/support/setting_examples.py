"""Examples of settings, from their declarations. Therefore a new setting needs no entry in a test's list."""

import re
from typing import Any

from s3notify_platform.kernel.setting import Setting

LIKE = re.compile(r'\blike (?:"([^"]+)"|([^\s;,]+))')
"""Matches the example in a description: `like raw/`, or `like "id bigint"` for an example with spaces."""


def example_of(setting: Setting) -> Any:
    """A value other than the default: the next number, the other choice, or the example of the description."""
    if setting.number is not None:
        return setting.default + 1
    if setting.base is bool:
        return not setting.default
    if setting.choices:
        return next(choice for choice in setting.choices if choice != setting.default)
    found = LIKE.search(setting.about.description)
    assert found is not None, f"{setting.name}: its description needs an example with like"
    return found[1] or found[2].rstrip(".:")
