"""Only this package imports PySpark; the engine itself does not depend on Spark.

`spark_jobs` runs Spark jobs for the engine. One job plans: it lists the bucket once, or reads the queue's entries, and
its tasks compare the result with the committed state. Another job reads the resulting splits and stages the data of the
slots. No rows reach the driver. `batch_schema` chooses the schema that a batch is parsed with. `derive` builds the
tables of slot assets. `load` reads committed slots back as one DataFrame. `continuous` polls the keyspace, and drives
the engine without Dagster. `datasource` is `spark.read.format("s3notify")`.
"""
