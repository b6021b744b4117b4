"""The table: rows become visible through one conditional commit object for each slot and generation.

`layout` names the objects, `commit` is the value that makes a generation visible and the client that creates it,
`schema` pins column types, `reader` reads without Spark, `history` goes back in time, `quarantine` asks again for
what could not be taken in, `missing` finds slots whose commits are gone, `vacuum` removes what nothing refers to.
`delta/` keeps a Delta Lake view of it current: `view` syncs, `log` reads and writes the log, `format` is the log as
values.

    {table}/commits/{slot}/{inverted generation}.json   newest sorts first
    {table}/state/{slot}/{name}.parquet                 object states, referenced by a commit
    {table}/data/slot={slot}/{name}.parquet             rows with their lineage columns
    {table}/data/_delta_log/…                           the Delta view of them
    {table}/quarantine/slot={slot}/{name}.parquet       rejects: key, etag, offset, reason, raw bytes
    {table}/schema/{inverted generation}.json           column types, each generation a superset of the last
"""
