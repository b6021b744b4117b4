"""Delivery: the entries of a topic with an endpoint are pushed to this endpoint."""
