"""`spark.read.format("s3notify")` and `spark.readStream`: the same engine as a Spark data source."""
