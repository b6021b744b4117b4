"""The table as one Delta log, which takes the place of `table`.

A round of a batch becomes one version of the log: packs (data files of many slots), a manifest (the rest of the state
as of that version), and the version itself, created if absent. Everything that no version names is garbage.

Reading order: `layout` (names), `actions` (what a version says), `metadata` (schema and protocol), `statistics` and
`vectors` (what the log says of a pack), `checkpoint` (the log in short), `manifest`, `states` (the state of each
object), `log_state` and `snapshot` (the newest state, read cold or warm), `commit` (the next version), `packs` (files
of rows). A writer is a `Change` (`proposal`): `round`, `replace` (of derived tables), `rollback`, `compact`.
"""
