"""Keys are removed from texts that get into logs."""

import pytest

from s3notify_platform.engine.values.results import without_key


@pytest.mark.parametrize(
    "text",
    [
        "raw/Zoë's file.csv: it is damaged",
        f"KeyError: {'raw/Zoë' + chr(39) + 's file.csv'!r}",
        "no access to s3://b/raw/Zo%C3%AB%27s%20file.csv",
        "no access to https://b/raw%2FZo%C3%AB%27s%20file.csv",
    ],
    ids=["plain", "as in Python", "as in a path", "as in a query"],
)
def test_the_key_is_removed_however_it_is_written(text: str) -> None:
    """Reasons and tracebacks quote keys in several ways. A key in a log would outlast the erasure of its object,
    because `erase` cannot change logs.
    """
    found = without_key(text, "raw/Zoë's file.csv")
    assert "…" in found
    assert "Zo" not in found
    assert "file.csv" not in found


def test_a_text_without_a_key_stays() -> None:
    """The traceback of a whole slot has no key. If the empty key were replaced, an ellipsis would stand between all
    characters of the traceback, and nobody could read the text.
    """
    assert without_key("slot 3 failed", "") == "slot 3 failed"
