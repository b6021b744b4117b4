"""Object states: the state of an object says which part of the object was read. States are stored as a small
log-structured merge tree of files.
"""
