"""A table of newest rows has the newest row of each key. `table.follow` keeps the table in step with its source's
table.

Reading order: `latest_definition` (the key's columns, and the order of rows), `ranks` (texts by which rows are
compared), `latest_round` (the next version, from the changes), `latest_build` (a rebuild), `newest_rows` (the
implementation of `follow.Kind` for these tables).

A row leaves the table when its object leaves the source's table. If an object is overwritten, deleted, erased or
quarantined, its rows leave, too. For each key of these rows, the table then has the newest other row with this key.
"""
