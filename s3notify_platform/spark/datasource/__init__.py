"""Spark's data source.

`spark.read.format("s3notify")` reads a source's objects or its table; `spark.readStream` reads changes of the table.
"""
