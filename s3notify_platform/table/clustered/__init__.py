"""A clustered table has the same rows as its source, sorted by some columns. `table.follow` keeps the table in step
with its source.

A query by the sorted columns reads only the few files whose statistics include the query's values. The clustered table
is a second table. The source's table stays sorted by slot, because a read of a slot, or an overwrite, finds its rows by
this order. In a clustered table, the rows of a slot or an object may be in every file. `poe bench clustering` has the
figures for this decision. By the arithmetic of this benchmark, a single clustered table would take about 6 times as
many bytes, both for a read of a slot and for the commit of an overwrite. But the second table must be updated, too, so
an overwrite takes more bytes in total.

Reading order: `cluster_order` (the columns), `bounds` (which files may hold a row, by their statistics),
`cluster_files` (files of sorted rows), `clustered_round` (the next version, from the changes), `overlap` (the files
that compaction merges), `clustered_rows` (the implementation of `follow.Kind` for clustered tables).
"""
