"""The table: rows become visible through one conditional commit object for each slot and generation.

`layout` names the objects, `commit` is the value that makes a generation visible and the client that creates
it, `schema` pins column types, `reader` reads without Spark, `history` goes back in time, `quarantine` sends again
what could not be taken in, `vacuum` removes what nothing refers to. `delta` keeps a Delta Lake view of it in step
(`delta_log` reads and writes its log, `delta_format` is that log as values).

    {table}/commits/{slot}/{inverted generation}.json   newest sorts first
    {table}/state/{slot}/{name}.parquet                 object states, referenced by a commit
    {table}/data/slot={slot}/{name}.parquet             rows with their lineage columns
    {table}/data/_delta_log/…                           the Delta view of them
    {table}/quarantine/slot={slot}/{name}.parquet       rejects: key, etag, offset, reason, raw bytes
    {table}/schema/{inverted generation}.json           column types, each generation a superset of the last
"""
