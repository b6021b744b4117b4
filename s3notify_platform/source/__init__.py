"""What a source is: settings by name, and the values that are made of them. No Spark, no Dagster.

Reading order:
    settings          each setting once: name, type, default, description, unit
    format_settings   those of how records and values are written, and of what rows must hold
    batch_settings    those of its batches, which the source itself does not need
    build             from settings by name to a `Source`: the one way, wherever settings are given
    reach             where buckets and tables are, and how they are reached, for those who need no more
    location          where a source keeps its tables, signals, queue and records, and how these are committed to
    source            what it reads (`Input`), and all of it (`Source`), which travels to Spark's tasks
    declared_schema   columns that are declared as DDL
    object_columns    columns that a row has besides its data: of its key, of what the store says, the record
    rules             what rows must hold
"""
