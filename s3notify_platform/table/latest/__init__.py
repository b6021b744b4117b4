"""The newest row of each key: a table that is kept in step with another one (`table.follow`).

Reading order: `latest_definition` (the key's columns, and the order of rows), `ranks` (texts by which rows are
compared), `latest_round` (the next version, from the changes), `latest_build` (a rebuild), `newest_rows` (all parts
together).

No row outlives its object. If an object is overwritten, deleted, erased or quarantined, its keys get their next-newest
rows.
"""
