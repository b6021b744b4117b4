"""The table as a Delta Lake table: its view, the log that it is written to, and the log's format."""
