"""Upkeep of a source and its tables: vacuum, compact, erase, remove, migrate, roll back, tag. No Spark, no Dagster.

Each operation is a `task.Task`: it plans its work, does the work, and reports the result.
"""
