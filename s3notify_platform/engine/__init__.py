"""The journey of a batch over the table of `lake`: plan, read, stage, commit. Takes the place of `ingest`'s."""
