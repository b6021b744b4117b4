"""The state of one object, between its writer and a committed row. The package only reads, and starts no Spark.

`look` reads the bucket, the queue, the ack chains and the table. `answer` has the facts that were found, and derives
the verdict and a text from these facts. The command and the Dagster job print this text.
"""

from s3notify_platform.explain.answer import Answer, Verdict
from s3notify_platform.explain.look import explain
from s3notify_platform.explain.views import BatchView, SensorView

__all__ = ["Answer", "BatchView", "SensorView", "Verdict", "explain"]
