"""Formats: bytes of objects in, Arrow rows and rejects out. No Spark, no requests of its own."""
