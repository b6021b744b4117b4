"""The parts of a batch: when one is due, what has changed, what a task reads. No Spark, no Dagster.

    batches, scheduler, follow   when a batch is due, of which slots, and how it finds out what changed
    compare, listing_chains,     bucket and queue against committed state, in tasks, and what the driver makes of it
      plan
    splits, reader, fetch,       what each task reads, how, and what became of an object
      outcome
    row_schema, wire             what travels between driver and tasks
    migrate, rollback, erase,    commands on a source and its tables
      remove, tagging

The run itself is in `engine`.
"""
