"""The demo's source: orders in three formats, watched on the embedded server."""
