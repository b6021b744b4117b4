"""The table as one Delta log: object states, rows and rejects of all slots, committed as one version a round.

A round of a batch becomes one version of the log: packs (data files of many slots), a manifest (the rest of the state
as of that version), and the version itself, created if absent. Everything that no version names is garbage.

Reading order: `layout` (names), `delta/` (the log's format), `schema` (columns), `states/` (the state of each object),
`manifest`, `changes` (of states, by version), `known` (the record outside), `snapshot` (the newest state, read cold or
warm), `proposal` and `commit` (the next version), `packs/` (files of rows, and which of them a round rewrites),
`mirrors/` (what shows the table elsewhere), `log_table` (all of it together); the changes: `round` (of a batch),
`derived_round`; then `reading` (rows of slots), `feed` and `row_changes` (the change feed), `follow` (tables that are
kept in step with another one: `latest/`, `clustered/`), `open_table`, `versions`, `quarantined`, `check`. Upkeep of
tables is in `maintenance`.
"""
