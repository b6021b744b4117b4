"""The five seed protocols, one module or package each, over `ports` alone: no SDK, no Spark, no Dagster.

They do not import each other; what joins them stands above.
"""
