"""The packages of the five protocols. The protocols use no SDK, no Spark and no Dagster: all their requests go through
`kernel.ports`.

The protocols do not import each other. The layers above combine the protocols. All five protocols may use the module
`updates`: a rule for writes whose outcome is unknown, and a compare-and-set loop.
"""
