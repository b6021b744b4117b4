"""Drives a run, without Spark: from changed objects to one version of the table, in rounds.

Reading order: `stage` (tasks read and write packs), `collect` (what they send back), `settle` (a slot's new states),
`staged` (a round, and the snapshot that it is planned on), `commit` (as one version), `loop` (through all tables, and
all that follows a commit), `driver` (round by round).
"""
