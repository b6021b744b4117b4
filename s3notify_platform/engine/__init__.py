"""A change on its way from an entry to rows that are visible, without Spark and without Dagster.

One folder for each step, in the order of the way; each knows only those before it, and `values`.

    values/   what is handed from step to step, each declared once, and its rows between the driver and its tasks
    batch/    when a batch is due, of which slots, and how it finds out what changed
    plan/     bucket and queue against the committed states: the plan of each slot
    read/     what each task reads, how, and what became of an object
    stage/    tasks write packs, and the driver collects them
    commit/   the new states of each slot, and the round as one version of the table
    loop      through all tables of the run, and all that follows a commit
    jobs      what takes a cluster, as a port
    driver    the run, round by round
"""
