"""A source's settings by name, and the values that are built from them. No Spark, no Dagster.

Reading order:

- settings: each setting once, with its name, type, default, description and unit.
- choice_settings: settings that choose the objects to read.
- format_settings: settings of record formats, value notation and row rules.
- batch_settings: settings of batches. `Source` itself does not need these settings.
- commit_settings: settings of commits under DynamoDB leases.
- build: builds a `Source` from settings by name.
- bucket_settings: finds buckets and DynamoDB tables in the settings, for publishers and other callers without a
  `Source`.
- location: places of a source's tables, signals, queue and records, and the commit mode of its tables.
- source: `Input` (the objects to read) and `Source`, which is sent to Spark tasks.
- declared_schema: columns that are declared as DDL.
- declared_types: compares declared types with the types in the table.
- object_columns: columns besides the data, from the key, the store's metadata and the raw record.
- rules: conditions that rows must fulfil.
"""
