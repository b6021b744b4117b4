"""The engine: what changed in a source, compared, read, staged and committed. No Spark, no Dagster."""
