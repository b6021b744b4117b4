"""Code versions with a fixed meaning."""

from typing import Final

NO_TRANSFORM: Final = "none"
"""The code version of a source without a transform."""

OTHER_CODE: Final = "other"
"""Replaces the code version if several code versions made a slot's rows, or if the code version is unknown."""
