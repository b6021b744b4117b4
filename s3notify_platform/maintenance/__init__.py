"""Upkeep of a source and its tables: vacuum, compact, erase, remove, migrate, roll back, tag, read again. The package
uses neither Spark nor Dagster.

Each operation is a `task.Task`: the task plans its work, does the work, and reports the result.
"""
