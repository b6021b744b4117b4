"""Inlets: changes that others report become entries of the queue, then signals."""
