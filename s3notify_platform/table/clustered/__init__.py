"""A clustered table has the same rows as its source, sorted by some columns. `table.follow` keeps the table in step
with its source.

A query by these columns reads only the few files whose statistics include the query's values. The clustered table is a
second table. The source's table keeps its order by slot, because reads of a slot and overwrites find their rows by this
order. In a clustered table, the rows of a slot or an object may be in every file. `poe bench clustering` has the
figures for this decision: a single clustered table, by arithmetic, takes about 6 times the bytes for a read of a slot
and for the commit of an overwrite. The price is the update of the second table, so that an overwrite takes more bytes
in all.

Reading order: `cluster_order` (the columns), `bounds` (which files may hold a row, by their statistics),
`cluster_files` (files of sorted rows), `clustered_round` (the next version, from the changes), `overlap` (the files
that compaction merges), `clustered_rows` (the implementation of `follow.Kind` for clustered tables).
"""
