"""The guide's page of options, which is made from the declarations of the options. `poe options` writes the page."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Final

from s3notify_platform.channels.registry import SERVICES
from s3notify_platform.kernel.setting import Setting, named
from s3notify_platform.local.attributes import SourceAttributes, SparkSettings, attributes_of
from s3notify_platform.source.batch_settings import BatchSettings
from s3notify_platform.source.format_settings import FormatSettings
from s3notify_platform.source.settings import (
    BucketSettings,
    ClusterSettings,
    DynamoSettings,
    InputSettings,
    LatestSettings,
    LocationSettings,
    S3Settings,
    TopicSizeSettings,
)

PAGE: Final = Path(__file__).parents[2] / "s3notify_platform" / "guide" / "options.md"

HEAD: Final = """\
# Options

All attributes of a source's YAML, with their defaults.

The same names are the options of the Spark data source (`option("csv_delimiter", ";")`) and, with dashes, of
`s3notify ingest` (`--csv-delimiter`). Elsewhere than in YAML, a group's attributes have other names, for example names
that begin with `latest_`. A wrong name or value is refused with the name of the attribute before anything is
written.

`poe options` makes this page from the declarations in the code.
"""

_PARTS: Final[Mapping[str, tuple[type, ...]]] = {
    "The source": (BucketSettings, LocationSettings),
    "Which objects are read": (InputSettings,),
    "How records are written": (FormatSettings,),
    "Code, assets and schedules in Dagster": (SourceAttributes,),
    "Batches": (BatchSettings,),
    "`cluster_by`": (ClusterSettings,),
    "The source's topic": (TopicSizeSettings,),
}
_GROUPS: Final[Mapping[str, type]] = {
    "latest": LatestSettings,
    "s3": S3Settings,
    "dynamodb": DynamoSettings,
    "spark": SparkSettings,
}


def page() -> str:
    """The text of the whole page."""
    return f"{HEAD}\n" + "\n".join(_tables())


def _tables() -> Iterator[str]:
    known = attributes_of(*SERVICES)
    listed: set[str] = set()
    for title, classes in _PARTS.items():
        own = {name: one for name, one in named(*classes).items() if name in known and name not in listed}
        if title == "Which objects are read":
            own = {name: one for name, one in own.items() if name not in named(FormatSettings)}
        listed |= own.keys()
        yield _table(title, {name: one for name, one in own.items() if one.group is None})
    for name, group in _GROUPS.items():
        yield _table(f"Group `{name}`: {known[name].about.description}", named(group))
    for name, kind in SERVICES.items():
        yield _table(f"Group `{name}`: {kind.summary.removesuffix('.')}", named(kind.settings()))


def _table(title: str, settings: Mapping[str, Setting]) -> str:
    rows = [f"| `{name}` | {_default(one)} | {_cell(_about(one))} |" for name, one in settings.items()]
    return f"## {title}\n\n| attribute | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _default(setting: Setting) -> str:
    match setting.default:
        case value if value is MISSING:
            return "required"
        case None | "" | () | {}:
            return ""
        case bool(value):
            return f"`{str(value).lower()}`"
        case float(value):
            return f"`{value:.15g}`"
        case tuple(values):
            return f"`{', '.join(values)}`"
        case value:
            return f"`{_cell(str(value))}`"


def _about(setting: Setting) -> str:
    limits = [setting.about.unit] if setting.about.unit else []
    low, high = setting.about.minimum, setting.about.maximum
    if high is not None:
        limits.append(f"{low or 0:.15g} to {high:.15g}")
    elif low:
        limits.append(f"at least {low:g}")
    about = setting.about.description
    if setting.choices and not all(choice in about for choice in setting.choices):
        about += f". One of: {', '.join(setting.choices)}"
    return f"{about} ({', '.join(limits)})" if limits else about


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
