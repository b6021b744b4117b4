"""The five seed protocols, one file each, over `ports` alone: no SDK, no Spark, no Dagster, no imports of each other."""
