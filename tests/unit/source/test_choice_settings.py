"""One class declares the settings that choose objects. `explain` and help pages use the declarations of this class."""

from dataclasses import replace
from typing import Any

import click

from s3notify_platform.cli.help_pages import OBJECTS, SettingOption
from s3notify_platform.cli.main import main
from s3notify_platform.kernel.setting import named
from s3notify_platform.protocols.source_enumerator import ObjectState
from s3notify_platform.source.choice_settings import ChoiceSettings
from s3notify_platform.source.settings import InputSettings
from s3notify_platform.source.source import Input
from s3notify_platform.stores.config import S3Config
from tests.support.sources import source_of


def test_explain_has_an_option_for_every_setting_that_the_choice_of_objects_uses() -> None:
    """Otherwise, `explain` would ignore the setting in the source's YAML, and give wrong verdicts."""
    used: set[str] = set()

    class Recording(Input):
        def __getattribute__(self, name: str) -> Any:
            used.add(name)
            return super().__getattribute__(name)

    plain = source_of(bucket=S3Config(bucket="b"), name="orders")
    source = replace(plain, input=Recording(**vars(plain.input)))
    used.clear()
    _ = source.choice
    source.input.stays(ObjectState(key="k", etag="e", size=1))
    explain = main.get_command(click.Context(main), "explain")
    assert explain is not None
    under_heading = {
        option.name
        for option in explain.params
        if isinstance(option, SettingOption) and option.heading == OBJECTS
    }
    assert used & named(InputSettings).keys() == named(ChoiceSettings).keys() == under_heading
