"""Object states: they say which part of each object was read. They are stored as a small log-structured merge tree of
files.
"""
