"""Formats of blocks that are read by ranges: Parquet and ORC; what Avro shares with them."""
