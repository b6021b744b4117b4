"""Processes a change from its queue entry to visible rows, without Spark and without Dagster.

The list below has the order of processing. A contract in CI fixes the imports: in the order driver, jobs, commit, loop,
stage, plan, read, batch, run_state, values, each module imports only later modules.

    values/   the values passed between steps, each declared once, and the rows that carry them to and from tasks
    batch/    when a batch is due, which slots it has, and how it finds out what changed
    plan/     compares bucket and queue with the committed states: the plan of each slot
    read/     the splits that each task reads, how a task reads them, and the outcome of each object
    stage/    tasks write packs, and the driver collects them
    commit/   the new states of each slot, and the round as one version of the table
    loop      commits each round to all tables of the run, and does everything that follows a commit
    jobs      the port of the work that runs on a cluster
    driver    the run, round by round; `run_state` has the state of the run
"""
