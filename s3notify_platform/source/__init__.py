"""A source's settings by name, and the values that are built from them. No Spark, no Dagster.

Reading order:

- settings: each setting once, with its name, type, default, description and unit.
- format_settings: settings of record formats, value notation and row rules.
- batch_settings: settings of batches, which `Source` itself does not need.
- commit_settings: settings of commits under DynamoDB leases.
- build: builds a `Source` from settings by name, wherever they are given.
- bucket_settings: buckets and tables of the settings, for callers that need nothing else, like publishers.
- location: places of a source's tables, signals, queue and records, and the commit mode of its tables.
- source: `Input` (the objects to read) and `Source`, which travels to Spark's tasks.
- declared_schema: columns that are declared as DDL.
- declared_types: declared types compared with the table's.
- object_columns: columns besides the data, from the key, the store's metadata and the raw record.
- rules: rules that rows must satisfy.
"""
