"""The table is one Delta log: it has the object states, rows and rejects of all slots.

A round of a batch becomes one version of the log. The version consists of packs (data files of many slots), a manifest
(the rest of the table's state), and an entry in the log. A conditional write creates the entry, so only one of several
writers succeeds. A file to which no version refers is garbage.

Reading order:

    - `layout` (names), `delta/` (the log's format), `arrow_schema` and `pinned_schema` (columns)
    - `states/` (the state of each object), `manifest`, `state_changes` (the changes of states in each version)
    - `known` (the record outside the table's prefix), `snapshot` (the whole table as of a version)
    - `proposal` and `commit` (the next version), `packs/` (files of rows, and the choice of packs to rewrite)
    - `mirrors/` (the table in other catalogs and formats), `log_table` (one table, with its reader and its committer)
    - `round`, `derived_round`, and `retype` with `schema_change` (the kinds of changes to a table)
    - `reading` (rows of slots), `feed` and `row_changes` (the change feed)
    - `follow` (derived tables that follow another table: `latest/`, `clustered/`)
    - `open_table`, `versions`, `quarantined`, `reread`, `check`

Upkeep of tables is in `maintenance`.
"""
