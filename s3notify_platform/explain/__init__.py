"""What happened to an object: where it stands between its writer and a committed row. Reads only; starts no Spark.

`look` asks the bucket, the queue, the ack chains and the table; `answer` holds what was found and says it, with the
verdict first. The command line and the Dagster job are thin ends of both.
"""

from s3notify_platform.explain.answer import Answer, Verdict
from s3notify_platform.explain.look import explain
from s3notify_platform.explain.sensor_view import BatchView, SensorView

__all__ = ["Answer", "BatchView", "SensorView", "Verdict", "explain"]
