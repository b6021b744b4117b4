"""The engine: what changed in a source, compared, read, staged and committed. No Spark, no Dagster.

    source, location, settings   what a source is
    batches, scheduler, follow   when a batch is due, of which slots, and how it finds out what changed
    engine                       one run: plan, read, stage, round by round; what takes a cluster is behind `Jobs`
    rounds                       what a round has staged, and how it is committed
    compare, listing_chains,     bucket and queue against committed state, in tasks, and what the driver makes of it
      plan
    splits, reader, fetch        what each task reads, and how
    slot_writer, part_writer,    the rows of a slot become files and the bytes of its next commit
      slot_files, outcome
    row_schema, wire             what travels between driver and tasks
    migrate                      makes a table one of another prefix, or of other slots
    task_chain                   what the tasks of a job say they have done

Read `engine` first, then `rounds`.
"""
