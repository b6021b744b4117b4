"""The values that one step passes to the next, each declared once. There are at most twelve.

A change is described by these values, from its entry to its rows:

    rows      WantedSlot, SplitOfTask: from the driver to its tasks;
              ReadObject, WrittenPack, StoredRows, FailedSlot, Requests: from a task to its driver
    plan      SlotPlan, Plan: the work of a slot, and of a round
    outcome   Outcome: how the read of an object, or of a part of it, ended
    results   SlotResult: how a slot ended; BatchResult: the slots of a batch together

`row_schema` converts the rows to columns of Arrow and Spark. `unforeseen` describes errors.
"""
