"""From settings by name to a `Source`: the one way of YAML, flags, Spark's options and the IO manager's fields. Pure.

Values may be of their types or texts, as options are. Wrong names, wrong values and missing ones are refused in the
same words, whichever way they came (`setting.values_in`).
"""

from collections.abc import Mapping

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import given_of, values_in
from s3notify_platform.protocols.conditional_commit import LeaseSettings
from s3notify_platform.source.bucket_settings import Keys, bucket_of, platform_of, table_of
from s3notify_platform.source.location import CommitMode, Location
from s3notify_platform.source.settings import SETTINGS, InputSettings, LeaseTimeSettings, LocationSettings
from s3notify_platform.source.source import Input, Source


def build(given: Mapping[str, object], *, keys: Keys | None = None) -> Source:
    """The source that these settings make (`SETTINGS`); those that are not given have their defaults. No request.

    `keys` sign requests to the buckets, instead of credentials that are named. `UsageError` names the setting that
    cannot be, its value, and what can.
    """
    values = values_in(given, SETTINGS)
    times = {name.removeprefix("lease_"): time for name, time in given_of(values, LeaseTimeSettings).items()}
    try:
        bucket = bucket_of(values, keys)
        return Source(
            location=Location(
                platform=platform_of(values, bucket),
                records_table=table_of(values, "records_table"),
                **given_of(values, LocationSettings),
            ),
            input=Input(bucket=bucket, **given_of(values, InputSettings)),
            commit=CommitMode(
                choice=values.get("commit", "auto"),
                lease_table=table_of(values, "lease_table"),
                leases=LeaseSettings(**times),
            ),
        )
    except UsageError as error:
        raise UsageError(f"source {values['name']!r}: {error}") from error
