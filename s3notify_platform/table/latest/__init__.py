"""The newest row of each key: a table that is kept in step with another one, exactly once.

Reading order: `definition` (which rows have a key in common, and which is the newest), `ranks` (texts by which rows are
compared), `latest_round` (the next version, from what changed), `latest_build` (all of it anew), `latest_jobs` (work on
the whole source, as a port), `latest_schema`, `follow` (all of it together).

A definition of its own beside its peers': a row that leaves, since its object was overwritten, deleted, erased or
quarantined, gives way to the next-newest of its key.
"""
