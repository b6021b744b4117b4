"""`spark.read.format("s3notify")`, the objects or the table, and `spark.readStream`, the rows that come to it."""
