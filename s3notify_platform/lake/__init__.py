"""The table as one Delta log, which takes the place of `table`.

A round of a batch becomes one version of the log: packs (data files of many slots), a manifest (the rest of the state
as of that version), and the version itself, created if absent. Everything that no version names is garbage.

Reading order: `layout` (names), `actions` (what a version says), `manifest`, `states` (the state of each object),
`snapshot` (the newest state, read cold or warm), `commit` (the next version), `pack_file` (a file of rows), `packs`
(rows come and leave), `compaction` (which packs a round rewrites).
"""
