"""Inlets and outlets of notifications. The queue's issue fills this room."""
