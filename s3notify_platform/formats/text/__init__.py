"""Formats of plain lines. `text`, the simplest format, has one value in each line."""
