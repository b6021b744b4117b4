"""The table as a Delta Lake table: the view, its log, and the log's format."""
