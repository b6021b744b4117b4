"""Batches: when a batch is due, which slots it has, and how it finds out what changed: by entries or by a listing."""
