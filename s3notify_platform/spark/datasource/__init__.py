"""`spark.read.format("s3notify")`: the objects or the table; `spark.readStream`: rows added to the table."""
