"""Values of settings as texts give them: options of the data source, and of commands."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from s3notify_platform.errors import UsageError
from s3notify_platform.setting import About, parsed, settings_of
from s3notify_platform.spark.datasource.options import reading_of


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A setting of each kind."""

    on: Annotated[bool, About("Whether")] = True
    many: Annotated[int, About("How many", unit="of them")] = 1
    share: Annotated[float, About("Which share", unit="share")] = 0.5
    text: Annotated[str | None, About("Which one")] = None


def test_texts_become_values():
    """A text that says false is false."""
    texts = {"on": "false", "many": "7", "share": "0.1", "text": "false"}
    found = {one.name: parsed(one.name, texts[one.name], one.scalar) for one in settings_of(Toy)}
    assert found == {"on": False, "many": 7, "share": 0.1, "text": "false"}
    with pytest.raises(UsageError, match="on='no': use true or false"):
        parsed("on", "no", bool)
    with pytest.raises(UsageError, match="many='x': give a number"):
        parsed("many", "x", int)


@pytest.mark.parametrize(
    ("text", "pays"), [("false", False), ("False", False), ("true", True), ("True", True)]
)
def test_the_data_source_takes_truth_values(text, pays):
    reading = reading_of({"bucket": "b", "prefix": "raw/", "requester_pays": text})
    assert reading.source.input.bucket.requester_pays is pays
