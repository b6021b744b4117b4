"""The table: rows become visible through one conditional commit object for each slot and generation.

`layout` names the objects, `commit` is the value that makes a generation visible and the client that creates
it, `schema` pins column types, `reader` reads without Spark, `quarantine` sends again what could not be taken in,
`vacuum` removes what nothing refers to.

    {table}/commits/{slot}/{inverted generation}.json   newest sorts first
    {table}/state/{slot}/{name}.parquet                 object states, referenced by a commit
    {table}/data/slot={slot}/{name}.parquet             rows with their lineage columns
    {table}/quarantine/slot={slot}/{name}.parquet       rejects: key, etag, offset, reason, raw bytes
    {table}/schema/{inverted generation}.json           column types, each generation a superset of the last
"""
