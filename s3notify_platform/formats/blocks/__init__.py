"""Formats whose files have blocks, and are read by ranges: Parquet and ORC.

Also the parts that Avro shares with them.
"""
