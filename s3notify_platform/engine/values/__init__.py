"""The values that one step hands to the next, each declared once.

Eleven shapes carry a change from its entry to its row:

    rows      WantedSlot, SplitOfTask: from the driver to its tasks;
              ReadObject, WrittenPack, StoredRows, FailedSlot, Requests: from a task to its driver
    plan      SlotPlan, Plan: what a slot, and a round, is to read
    outcome   Outcome: how the read of an object, or of a part of it, ended
    results   SlotResult: how a slot ended; and BatchResult, Run, Reading of the run as a whole

`row_schema` makes tables of the rows; `unforeseen` describes errors.
"""
