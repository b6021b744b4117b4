"""Batches: when a batch is due, which slots it has, and how it finds the changes (by entries or by a listing)."""
