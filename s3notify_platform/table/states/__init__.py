"""Object states: what was read of each object, in a small log-structured merge tree of files."""
