"""`spark.read.format("s3notify")` reads the objects or the table; `spark.readStream` reads changes of the table."""
