"""The five protocols, over `ports` alone: no SDK, no Spark, no Dagster.

They do not import each other; the layers above combine them. `updates` is shared: the rule for outcomes in doubt, and
the one compare-and-set loop.
"""
