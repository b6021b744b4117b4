"""The settings that choose the objects of a source. `source.settings` explains how settings are declared and used."""

from dataclasses import dataclass
from typing import Annotated, Literal

from s3notify_platform.kernel.setting import About


@dataclass(frozen=True, kw_only=True)
class ChoiceSettings:
    """The settings that decide if a source reads an object, and if the rows stay after the object's deletion.

    `Source.choice`, `Source.own` and `Input.stays` use these settings. `s3notify explain` has an option for each of
    these settings, because the command's verdict depends on the settings. `Choice` has a reason for each setting except
    `on_delete`. A condition that needs more than an object's key is also in `Choice.needs_meta` and `Choice.among`.
    """

    prefix: Annotated[
        str, About("Only keys that begin with this prefix, like raw/orders/; empty: the whole bucket")
    ] = ""
    include: Annotated[
        str,
        About(
            "Only keys whose part below the prefix matches one of these patterns, separated by |, like "
            "*.jsonl|2026/*.csv"
        ),
    ] = ""
    exclude: Annotated[
        str, About("Skip keys that match one of these patterns, like */tmp/*; * also matches /")
    ] = ""
    hidden_files: Annotated[
        Literal["skip", "read"],
        About(
            "Skip or read keys that have a part like _SUCCESS, .name or _temporary/, or that end with /; inlets "
            "apply a change of this setting when they restart"
        ),
    ] = "skip"
    other_platform_prefixes: Annotated[
        str,
        About(
            "Prefixes of the platform's objects that belong to other projects, like own/clicks/|own/queue/; these "
            "objects are neither read nor reported. Not needed for prefixes below _s3notify/"
        ),
    ] = ""
    modified_after: Annotated[
        str,
        About(
            "Only objects written at this time or later, like 2026-01-31T12:00:00Z; the present time excludes all "
            "existing objects"
        ),
    ] = ""
    on_delete: Annotated[
        Literal["withdraw", "keep", "keep_expired"],
        About(
            "Rows of a deleted object: withdraw (remove them from the table), keep, or keep_expired (keep "
            "them if the bucket's lifecycle expired the object, and if an inlet reports that before a "
            "listing finds the object missing)"
        ),
    ] = "withdraw"
