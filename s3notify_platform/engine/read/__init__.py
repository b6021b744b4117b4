"""Reads the splits of each task: fetches objects, parses them, and returns the outcome of each object."""
