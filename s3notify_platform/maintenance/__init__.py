"""Commands on a source and all its tables: erase, migrate, remove, roll back, tag. Without Spark and Dagster."""
