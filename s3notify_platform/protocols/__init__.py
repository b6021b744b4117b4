"""The packages of the five protocols. They reach the outside only through `kernel.ports`: no SDK, no Spark, no Dagster.

The protocols do not import each other. The layers above combine the protocols. All five protocols may use `updates`:
the rule for outcomes in doubt, and a compare-and-set loop.
"""
