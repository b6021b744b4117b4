"""Bucket and queue against the committed states, in tasks or on the driver: the plan of each slot."""
