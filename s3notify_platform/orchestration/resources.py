"""Dagster resources for Spark and DynamoDB, set up by configuration."""

import hashlib
import json
import os
from typing import Any, Final

import dagster as dg
from dagster_aws.s3 import S3Resource
from dagster_pyspark import PySparkResource
from dagster_pyspark.version import __version__ as pyspark_version
from dagster_spark.utils import flatten_dict
from pydantic import Field, create_model
from pyspark.sql import SparkSession

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import SESSIONS_MAX
from s3notify_platform.kernel.setting import named, settings_of
from s3notify_platform.local.dagster_versions import check_pair
from s3notify_platform.local.java import java_environment
from s3notify_platform.orchestration.session_places import take_place
from s3notify_platform.orchestration.setting_fields import Checked, fields_of
from s3notify_platform.source.bucket_settings import Keys, bucket_of
from s3notify_platform.source.settings import DynamoSettings, S3Settings
from s3notify_platform.spark.session import has_java, prepare_environment, session_conf
from s3notify_platform.spark.warm_sessions import is_replaced
from s3notify_platform.stores.credentials import session_of

check_pair(dg.__version__, pyspark_version)


class SlotSpark(PySparkResource):
    """A Spark session: embedded (`local[*]`), standalone, YARN, or Connect, by configuration alone.

    The session starts on first use, so a sensor or an idle step with this resource starts no JVM. The start waits until
    fewer than `max_sessions` processes of this machine have a session. `spark_config`: properties that override the
    platform's defaults. `remote`: a Spark Connect server, used instead of `master`.
    """

    spark_config: dict[str, Any] = Field(default={})
    master: str | None = None
    remote: str | None = None
    max_sessions: int = Field(default=SESSIONS_MAX, ge=1)

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Does nothing: the session starts on first use."""

    @property
    def spark_session(self) -> SparkSession:
        """The session, started on first use (5 to 20 s embedded). `UsageError` if there is no Java."""
        return self.started()

    def started(self, *, resident: bool = False) -> SparkSession:
        """See `spark_session`. `resident`: the start does not wait for other processes, because the supervisor limits
        the number of resident sessions.
        """
        # In a warm worker, the same resource serves one run after another, and each run has its own session.
        if self._spark_session is None or is_replaced(self._spark_session):
            master = None if self.remote else self.master or "local[*]"
            extra = {key: str(value) for key, value in flatten_dict(self.spark_config)}  # type: ignore[no-untyped-call]
            prepare_environment()
            if master is not None:
                os.environ.update(java_environment())
            conf = session_conf(master=master, remote=self.remote, extra=extra)
            if master is not None and not resident and not has_java():
                take_place(self.max_sessions, dg.get_dagster_logger().info)
            builder = SparkSession.builder.appName("s3notify")
            for key, value in conf.items():
                builder = builder.config(key, value)
            self._spark_session = builder.getOrCreate()
        session: SparkSession = self._spark_session
        return session


def spark_digest(spark: SlotSpark) -> str:
    """A digest that differs for resources that cannot share a Spark session."""
    conf = json.dumps([spark.master, spark.remote, spark.spark_config], sort_keys=True, default=str)
    return hashlib.blake2b(conf.encode(), digest_size=6).hexdigest()


S3_NAMES: Final = {"region": "region_name", "profile": "profile_name"}
"""Settings that `S3Resource` has under other names."""

_S3: Any = create_model(
    "_S3",
    __base__=S3Resource,
    __module__=__name__,
    **fields_of(s for s in settings_of(S3Settings) if s.name not in {*S3Resource.model_fields, *S3_NAMES}),
)


class NamedS3(_S3):  # type: ignore[misc] # a model made of the declared settings
    """dagster-aws' S3 resource, with names of credential variables instead of keys. Spark's tasks read the
    variables.
    """

    def get_client(self) -> Any:
        """See `S3Resource`."""
        found = bucket_of({"bucket": "", **reach_of(self)[0]}, reach_of(self)[1])
        return session_of(found).client("s3", endpoint_url=found.endpoint_url)


_Tables: Any = create_model(
    "_Tables",
    __base__=(Checked, dg.ConfigurableResource[None]),
    __module__=__name__,
    **fields_of(settings_of(DynamoSettings)),
)


class DynamoTables(_Tables):  # type: ignore[misc] # a model made of the declared settings
    """The DynamoDB tables of a source, if it has any. Without other credentials, boto3 looks for the default
    credentials.
    """


_WITHOUT_EFFECT: Final = {
    name: S3Resource.model_fields[name].default
    for name in ("use_unsigned_session", "max_attempts", "use_ssl", "verify")
}


def reach_of(resource: S3Resource) -> tuple[dict[str, Any], Keys]:
    """The access settings of a resource, and the access keys themselves if the resource holds them.

    Spark cannot use such keys, so only sensors and services use them: see `Access`. `UsageError` for a field of
    `S3Resource` that would have no effect.
    """
    for name, usual in _WITHOUT_EFFECT.items():
        if (given := getattr(resource, name)) != usual:
            raise UsageError(
                f"{type(resource).__name__}({name}={given!r}): this platform has its own retries, and "
                "signs and checks every request; leave it out (certificates: AWS_CA_BUNDLE; plain HTTP: "
                "endpoint_url='http://…')"
            )
    found = {name: getattr(resource, S3_NAMES.get(name, name), None) for name in named(S3Settings)}
    keys = ("access_key_id", "secret_access_key", "session_token")
    return {name: value for name, value in found.items() if value is not None}, {
        key: getattr(resource, f"aws_{key}") for key in keys
    }
