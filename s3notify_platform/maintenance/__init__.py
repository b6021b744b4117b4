"""Upkeep of a source and its tables: vacuum, compact, erase, remove, migrate, roll back, tag. It uses neither Spark nor
Dagster.

Each operation is a `task.Task`: it plans its work, does the work, and reports the result.
"""
