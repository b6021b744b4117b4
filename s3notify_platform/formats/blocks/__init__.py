"""Parquet and ORC: formats whose files consist of blocks, which are read by ranged GETs.

Avro uses parts of this package, too.
"""
