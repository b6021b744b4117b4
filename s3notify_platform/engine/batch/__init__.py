"""Batches: the time and the slots of a batch, and its way to find out what changed, by entries or by a listing."""
