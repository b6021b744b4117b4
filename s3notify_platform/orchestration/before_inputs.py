"""The versions that a step's own tables had before the step loaded its inputs.

A user's slot-partitioned asset replaces whole slots. If another run replaces a slot after this step's inputs were
loaded, the other run's rows may come from newer inputs. So the step must not replace the slots that were changed after
the noted version. The versions are noted when the step loads its first input from the source. The step does not notice
changes before this moment. A step without an input from the source notices no changes.
"""

from typing import Any, Final
from weakref import WeakKeyDictionary

import dagster as dg
from dagster import DagsterInvariantViolationError

from s3notify_platform.source.source import Source
from s3notify_platform.table.snapshot import Absent, Snapshot

_Tables = dict[tuple[str, str], Snapshot | Absent]

# The keys are step contexts. Dagster makes a new step context for each attempt of a step.
_NOTED: Final[WeakKeyDictionary[Any, _Tables]] = WeakKeyDictionary()


def note_tables(context: dg.InputContext, source: Source) -> None:
    """For each partitioned asset of the step, notes the newest version of its table, when the step loads its first
    input from `source`.

    Cost: the requests of `LogTable.newest` for each asset of the step; none for an asset without partitions.
    """
    try:
        step = context.step_context
    except DagsterInvariantViolationError:  # a person loads the asset, outside of a run
        return
    if step.assets_def is None or step.assets_def.partitions_def is None:
        return
    noted = _NOTED.setdefault(step, {})
    for key in step.assets_def.keys:
        if (place := (source.name, key.path[-1])) not in noted:
            noted[place] = source.location.table(key.path[-1]).newest()


def noted_table(context: dg.OutputContext, source: Source, asset: str) -> Snapshot | Absent | None:
    """The noted version of the asset's table. None if no input of the step is from this source."""
    return _NOTED.get(context.step_context, {}).get((source.name, asset))
