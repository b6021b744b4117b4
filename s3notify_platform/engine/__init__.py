"""The engine: what changed in a source, compared, read, staged and committed. No Spark, no Dagster.

    driver     one run: plan, read, stage, round by round; what takes a cluster is behind `Jobs`
    stage      tasks read splits, and write the rows to packs
    collect    the outcome of each object, and the packs that count, of what tasks have staged
    rounds     a round is committed, and what follows
    settle     from outcomes to the states of a slot

Read `driver` first, then `rounds`.
"""
