"""The only package that imports PySpark: the engine itself knows no Spark.

`spark_jobs` has Spark work for the engine: one job lists the bucket once, or follows the queue's entries, and compares
with the committed state, in tasks; one reads the splits that result and stages what the slots hold. No rows reach the
driver. `batch_schema` says what a batch is parsed with, `derive` makes downstream slot tables,
`load` reads committed slots back as one DataFrame, `continuous` drives the engine by a streaming query, and
`datasource` is `spark.read.format("s3notify")`.
"""
