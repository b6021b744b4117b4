"""Values of settings that are given as texts: options of the data source, and of commands."""

from dataclasses import dataclass
from typing import Annotated

import pytest

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import About, named, values_in
from s3notify_platform.spark.datasource.options import reading_of


@dataclass(frozen=True, kw_only=True)
class Toy:
    """A setting of each kind."""

    on: Annotated[bool, About("Whether")] = True
    many: Annotated[int, About("How many", unit="of them")] = 1
    share: Annotated[float, About("Which share", unit="share", maximum=1)] = 0.5
    text: Annotated[str | None, About("Which one")] = None


def test_texts_become_values():
    """Otherwise the text "false" would become true."""
    texts = {"on": "false", "many": "7", "share": "0.1", "text": "false"}
    assert values_in(texts, named(Toy)) == {"on": False, "many": 7, "share": 0.1, "text": "false"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"on": "no"}, "on='no': give true or false"),
        ({"many": "x"}, "many='x': give a whole number"),
        ({"many": 7.5}, "many=7.5: give a whole number"),
        ({"many": True}, "many=True: give a whole number"),
        ({"many": None}, "many=None: give a whole number"),
        ({"share": "nan"}, "share='nan': give a number"),
        ({"share": 2}, "share=2.0: must be at most 1"),
        ({"text": 7}, "text=7: give a text"),
        ({"manny": 7}, "manny: there is no such setting; did you mean many?"),
    ],
)
def test_the_error_of_a_wrong_value_names_the_setting_and_the_remedy(given, said):
    """Otherwise a user would not learn which setting is wrong, or which values it may have."""
    with pytest.raises(UsageError) as raised:
        values_in(given, named(Toy))
    assert str(raised.value) == said


def test_all_wrong_values_are_reported_together():
    """Otherwise a user would learn of only one wrong setting in each run."""
    with pytest.raises(UsageError) as raised:
        values_in({"on": "no", "many": "x"}, named(Toy))
    assert str(raised.value).splitlines() == ["on='no': give true or false", "many='x': give a whole number"]


@pytest.mark.parametrize(
    ("text", "pays"), [("false", False), ("False", False), ("true", True), ("True", True)]
)
def test_the_data_source_accepts_truth_values(text, pays):
    reading = reading_of({"bucket": "b", "prefix": "raw/", "requester_pays": text})
    assert reading.source.input.bucket.requester_pays is pays
