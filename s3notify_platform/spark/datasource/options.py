"""The data source's options, which describe a source to Spark. Options are strings, and are converted to a `Source`.
Pure.

Spark shows options in its plans, so no option is a secret. Options for access keys are names of environment variables
or of a profile; without such options, boto3's own chain finds access keys. Each machine that sends requests looks up
these names itself: the driver (with Spark Connect, the server) and every worker.

Spark's own names for the same options are accepted, too (`SPARK_NAMES`). Unlike in Spark's own options, a time must
have a time zone: the code that reads options has no session, and so no default zone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import About, given_of, named, values_in
from s3notify_platform.kernel.slots import Slot, slot_from_partition_key
from s3notify_platform.source.build import build
from s3notify_platform.source.source import Source
from s3notify_platform.stores.open_store import place_of

Read = Literal["objects", "table", "changes"]
Rejects = Literal["column", "fail", "drop"]

NEWEST: Final = "newest"


@dataclass(frozen=True, kw_only=True)
class ReadingSettings:
    """The options in addition to the source's settings. These options choose what to read of the source."""

    path: Annotated[str, About("Bucket and prefix in one, like s3://acme-landing/raw/orders/")] = ""
    read: Annotated[
        Read, About("The bucket's objects; the committed table; or the changes of the table, row by row")
    ] = "objects"
    rejects: Annotated[Rejects, About("Bad records: as rows with a reason, as an error, or dropped")] = (
        "column"
    )
    only: Annotated[str, About("The slots to read, like 3,17; default: all")] = ""
    version: Annotated[str, About("The table as of this version; default: the newest")] = ""
    at: Annotated[str, About("The table as of this time, like 2026-01-31T12:00:00Z")] = ""
    since: Annotated[
        str,
        About(
            "The version after which changes or a stream begin; for a stream also newest; default: a stream begins "
            "with all rows of the table"
        ),
    ] = ""
    poll_seconds: Annotated[
        float, About("The minimum time between two reads of the log", unit="seconds", minimum=0)
    ] = 1.0
    list_seconds: Annotated[
        float, About("The minimum time between two listings of the bucket", unit="seconds", minimum=0)
    ] = 10.0


SPARK_NAMES: Final = {
    "maxFilesPerTrigger": "max_objects",
    "maxBytesPerTrigger": "max_bytes",
    "pathGlobFilter": "include",
    "modifiedAfter": "modified_after",
    "mode": "rejects",
    "sep": "csv_delimiter",
    "delimiter": "csv_delimiter",
    "quote": "csv_quote",
    "escape": "csv_escape",
    "comment": "csv_comment",
    "nullValue": "csv_nulls",
    "dateFormat": "date_format",
    "timestampFormat": "timestamp_format",
    "timeZone": "time_zone",
}
"""Options of Spark's file sources, with the names of the same options in this data source."""

_MODES: Final = {"permissive": "column", "dropmalformed": "drop", "failfast": "fail"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A request to read a source: the kind of rows, and the limits.

    `read`: the bucket's `objects`, the committed `table`, or the table's `changes`. `rejects`: bad records as separate
    rows (`column`), as an error (`fail`), or dropped (`drop`). `only`: the slots to read. `version`, or `at_ms` (Unix
    milliseconds), chooses the table version to read. For `changes`, this version is the last version whose changes are
    read. The default is the newest version. `since`: the changes or the stream begin after this table version
    (`newest`: after the newest). If `since` is None, a stream begins with all rows of the table. `poll_seconds`: the
    minimum time between two reads of the log. `list_seconds`: the minimum time between two listings of the bucket.
    """

    source: Source
    read: Read = "objects"
    rejects: Rejects = "column"
    only: frozenset[Slot] | None = None
    version: int | None = None
    at_ms: int | None = None
    since: int | Literal["newest"] | None = None
    poll_seconds: float = 1.0
    list_seconds: float = 10.0

    @property
    def wanted(self) -> list[Slot]:
        """The slots to read."""
        return sorted(self.source.location.all_slots() if self.only is None else self.only)


def reading_of(options: Mapping[str, str]) -> Reading:
    """Checks the options. Raises `UsageError` for an option that is unknown, missing or contradictory."""
    given = _by_our_names({name.lower(): value for name, value in options.items()})
    source, reading = _source(given), given_of(given, ReadingSettings)
    found = values_in(reading, named(ReadingSettings))
    misplaced = sorted({"version", "at", "since"} & found.keys())
    if misplaced and found.get("read", "objects") == "objects":
        raise UsageError(
            f"option {misplaced[0]!r} is only for the committed table: give read='table' or 'changes'"
        )
    slots = source.location.slots
    if "only" in found:
        found["only"] = frozenset(slot_from_partition_key(s.strip(), slots) for s in found["only"].split(","))
    moments = {name: found.pop(name) for name in ("path", "version", "at", "since") if name in found}
    return Reading(source=source, **found, **_moments(moments))


def _by_our_names(given: Mapping[str, str]) -> dict[str, str]:
    found = {**given}
    for spark_name, name in SPARK_NAMES.items():
        if (value := found.pop(spark_name.lower(), None)) is None:
            continue
        if name in found:
            raise UsageError(f"options {spark_name} and {name} are the same: give one of them")
        match spark_name:
            case "mode":
                if value.lower() not in _MODES:
                    raise UsageError(f"mode={value!r}: use one of PERMISSIVE, DROPMALFORMED, FAILFAST")
                value = _MODES[value.lower()]
            case "maxBytesPerTrigger":
                value = _bytes(spark_name, value)
            case "pathGlobFilter":
                if {*"{}|"} & {*value}:
                    raise UsageError(
                        f"pathGlobFilter={value!r}: use the option include instead, like *.csv|*.jsonl"
                    )
                value = f"{value}|*/{value}"  # Spark compares the glob only with the file's name
            case _:
                pass
        found[name] = value
    return found


def _bytes(name: str, value: str) -> str:
    """Converts a size in Spark's notation, like 512m or 1g, to bytes."""
    if (found := re.fullmatch(r"\s*(\d{1,18})\s*(?:([kmgtp])b?|b)?\s*", value.lower())) is None:
        raise UsageError(f"{name}={value!r}: give bytes, like 1073741824, 512m or 1g")
    return str(int(found[1]) << 10 * (" kmgtp".index(found[2]) if found[2] else 0))


def _source(given: Mapping[str, str]) -> Source:
    settings = {"name": "source", **given}
    if path := settings.get("path"):
        if "bucket" in settings:
            raise UsageError(f"path {path!r}: give s3://bucket/prefix, or the options bucket and prefix")
        place = place_of(path)
        settings |= {"scheme": place.scheme, "bucket": place.bucket, "prefix": place.prefix}
    return build({name: value for name, value in settings.items() if name not in named(ReadingSettings)})


def _moments(given: Mapping[Any, str]) -> dict[str, Any]:
    """Parses the options that choose table versions: `version` or `at` for the version to read, and `since`."""
    if "version" in given and "at" in given:
        raise UsageError("options version and at: give one of them")
    found: dict[str, Any] = {}
    if "version" in given:
        found["version"] = _version("version", given["version"])
    if "at" in given:
        found["at_ms"] = _time_ms(given["at"])
    if "since" in given:
        since = given["since"]
        found["since"] = NEWEST if since == NEWEST else _version("since", since)
    return found


def _version(name: str, text: str) -> int:
    if re.fullmatch(r"\d{1,18}", text) is None:
        more = f", or {NEWEST}" if name == "since" else ""
        raise UsageError(
            f"{name}={text!r}: give the number of a version{more}; `s3notify history` shows them"
        )
    return int(text)


def _time_ms(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"at={text!r}: give a time like 2026-01-31T12:00:00Z") from error
    if found.tzinfo is None:
        raise UsageError(f"at={text!r}: add the time zone, like {text}Z")
    return round(found.timestamp() * 1000)
