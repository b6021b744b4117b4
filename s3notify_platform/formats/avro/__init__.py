"""Avro's object container files."""
