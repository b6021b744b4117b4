"""Upkeep of a source and its tables: vacuum, compact, erase, remove, migrate, roll back, tag. No Spark, no Dagster.

Each is a `task.Task`: it says what it would do, does it, and says what it did.
"""
