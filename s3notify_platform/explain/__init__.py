"""The state of one object, between its writer and a committed row. It only reads, and starts no Spark.

`look` reads the bucket, the queue, the ack chains and the table. `answer` holds the facts that were found, and derives
the verdict and the text from them. The command and the Dagster job print that text.
"""

from s3notify_platform.explain.answer import Answer, Verdict
from s3notify_platform.explain.look import explain
from s3notify_platform.explain.views import BatchView, SensorView

__all__ = ["Answer", "BatchView", "SensorView", "Verdict", "explain"]
