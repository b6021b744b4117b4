"""The table as one Delta log: object states, rows and rejects of all slots, committed as one version a round.

A round of a batch becomes one version of the log: packs (data files of many slots), a manifest (the rest of the state
as of that version), and the version itself, created if absent. Everything that no version names is garbage.

Reading order: `layout` (names), `actions` (the parts of a version), `metadata` and `schema` (columns and protocol),
`statistics` and `vectors` (a pack in the log), `checkpoint` (the log in short), `states` (the state of each object),
`manifest`, `changes` (of states, by version), `known` (the record outside), `log_state` and `snapshot` (the newest
state, read cold or warm), `proposal` and `commit` (the next version), `pack_file`, `packs`, `compaction` and `pack_set`
(files of rows, and which of them a round rewrites), `table` (all of it together); the changes: `round` (of a batch),
`replace` (of a derived table), `compact`, `rollback`; then `reading` (rows of slots), `feed`, `opening`, `put_back`,
`history`, `vacuum`, `check`.
"""
