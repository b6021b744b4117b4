"""Compares bucket and queue with the committed states, in tasks or on the driver: the plan of each slot."""
