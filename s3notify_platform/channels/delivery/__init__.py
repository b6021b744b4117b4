"""Delivery: topics with an endpoint are pushed to it."""
