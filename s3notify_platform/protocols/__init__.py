"""The five protocols, over `ports` alone: no SDK, no Spark, no Dagster.

They do not import each other; the layers above combine them. All five may use `updates`: the rule for outcomes in
doubt, and a compare-and-set loop.
"""
