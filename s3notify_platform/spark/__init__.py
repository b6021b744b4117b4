"""Changed objects become rows and files. PySpark lives here only.

One batch is three Spark jobs at most. `plan` lists the bucket once and compares it, slot by slot and in
tasks, with the committed state. `read` deals the resulting splits to tasks by bytes; each task reads with
many requests in flight, pinned to the ETag, and parses (`formats`). `stage` writes the Parquet files of each
slot and prepares its commit. `ingest` drives the three and makes the commits: `batch_schema` says what the batch
is parsed with, `staging_jobs` reads and seals in one job; only manifests reach the driver. `load` reads committed
slots back as one DataFrame.
"""
