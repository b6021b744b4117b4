"""Only this package imports PySpark; the engine itself does not depend on Spark.

`spark_jobs` runs Spark jobs for the engine. The first job plans: its tasks list the bucket, and compare the listing
with the committed states. (The driver compares small listings, and the entries of a queue.) The second job reads the
resulting splits and stages the rows of the slots. No rows reach the driver. `batch_schema` chooses the schema with
which a batch is parsed. `derive` builds the tables of slot assets. `load` reads committed slots back as one DataFrame.
`continuous` polls the keyspace, and runs the engine without Dagster. `datasource` implements
`spark.read.format("s3notify")`.
"""
