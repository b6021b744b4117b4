"""The newest row of each key: a table that is kept in step with another one (`table.follow`).

Reading order: `latest_definition` (which rows have a key in common, and which is the newest), `ranks` (texts by which
rows are compared), `latest_round` (the next version, from what changed), `latest_build` (a rebuild), `newest_rows`
(all of it together).

No row outlives its object: when an object is overwritten, deleted, erased or quarantined, the next-newest row of its
keys comes back.
"""
