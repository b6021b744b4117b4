"""The table: rows become visible through one conditional commit object for each slot and generation.

`layout` names the objects. `commit` has the value that makes a generation visible, and the client that creates it.
`schema` pins column types. `reader` reads without Spark. `history` finds earlier generations. `quarantine` lists what
could not be ingested, and retries it. `known` notes generations and identity outside the table, so that a loss, or
another source's settings, are noticed; `missing` finds slots whose commits are gone. `vacuum` removes files that no
commit refers to. `delta/` keeps a Delta Lake view of the table: `view` syncs, `log` reads and writes the log, `format`
is the log as values.

    {table}/commits/{slot}/{inverted generation}.json   newest sorts first
    {table}/state/{slot}/{name}.parquet                 object states, referenced by a commit
    {table}/data/slot={slot}/{name}.parquet             rows with their lineage columns
    {table}/data/_delta_log/…                           the Delta view of them
    {table}/quarantine/slot={slot}/{name}.parquet       rejects: key, etag, offset, reason, raw bytes
    {table}/schema/{inverted generation}.json           column types, each generation a superset of the last
    {table}/table.json                                  the table's id, which what is known of it has too
"""
