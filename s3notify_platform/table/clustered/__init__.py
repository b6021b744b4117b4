"""The same rows in the order of some columns: a table that is kept in step with another one (`table.follow`).

So a query by these columns reads the few files whose statistics have room for its values.

Reading order: `cluster_order` (the columns), `bounds` (which files may hold a row, by their statistics),
`cluster_files` (files in order, made of others or of new rows), `clustered_round` (the next version, from what
changed), `overlap` (what compaction merges), `clustered_rows` (all of it together).
"""
