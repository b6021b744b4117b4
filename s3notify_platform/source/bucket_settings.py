"""Finds the buckets and DynamoDB tables in the settings, and the settings for the access to them. Imports no large
package, because publishers import this module.

The settings are given by name, with values of their types (`setting.values_in`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.setting import given_of
from s3notify_platform.protocols.conditional_commit import is_lease_text, lease_text
from s3notify_platform.source.settings import DYNAMODB, SETTINGS, LocationSettings, S3Settings
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.table.own_objects import USUAL

Keys = Mapping[str, Any]
"""Credentials as plain texts: `access_key_id`, `secret_access_key`, `session_token`.

These credentials never leave this process.
"""


def bucket_of(values: Mapping[str, Any], keys: Keys | None = None) -> S3Config:
    """Returns the bucket that is read. If `keys` are given, they sign the requests to the bucket in place of the
    configured credentials.
    """
    return S3Config(bucket=values["bucket"], **given_of(values, S3Settings), **(keys or {}))


def platform_of(values: Mapping[str, Any], bucket: S3Config) -> S3Config:
    """Returns the bucket of the platform's own objects, with the access settings of `bucket`."""
    return replace(bucket, bucket=values.get("platform_bucket") or bucket.bucket)


def table_of(values: Mapping[str, Any], setting: str) -> DynamoConfig | None:
    """Returns the DynamoDB table of this setting, or None. The default region is that of the bucket."""
    return DynamoConfig(table=values[setting], **access_to_tables(values)) if values.get(setting) else None


def access_to_tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of `Access` for the DynamoDB tables. The default region is that of the bucket."""
    given = {name: values[flat] for name, flat in DYNAMODB.items() if values.get(flat)}
    return {"region": values.get("region"), **given}


def with_leases(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings. A `commit` in the form of object_store (`LEASE_FORM`) is replaced by `dynamodb`.

    The DynamoDB table and the timeout in such a `commit` become settings, too. Raises `UsageError` if other settings
    have another lease table or another timeout.
    """
    text = values.get("commit")
    if not isinstance(text, str) or not is_lease_text(text):
        return {**values}
    found = lease_text(text)
    given: dict[str, Any] = {"lease_table": found.table}
    if found.timeout_seconds is not None:
        given["lease_timeout_seconds"] = found.timeout_seconds
    for name, value in given.items():
        if values.get(name, SETTINGS[name].default) not in (None, "", SETTINGS[name].default, value):
            raise UsageError(
                f"commit {text!r} sets {name}, and {name} is also set to {values[name]!r}: leave out one of the two"
            )
    return {**values, "commit": "dynamodb", **given}


def unusual_prefixes(values: Mapping[str, Any], bucket: str) -> Iterator[str]:
    """Yields each unusual prefix of a source's own objects in `bucket`. Other sources recognize the platform's objects
    only by the usual prefixes.
    """
    place = LocationSettings(**given_of(values, LocationSettings))
    own = place.own_prefixes_in(bucket, platform_bucket=values.get("platform_bucket") or values["bucket"])
    return (prefix for prefix in own if not prefix.startswith(USUAL))
