"""Tags of the committed objects, if the source has `committed_tags`: set at the end of each batch's run, and in a
sweep.

So the tags need no asset and no runs of their own. No failure here fails a run: all slots are committed already, and
the next batch or sweep tags the remaining objects.
"""

from typing import Final

import dagster as dg

from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.maintenance.tagging import tag_committed
from s3notify_platform.orchestration.io_manager import SlotIOManager

BATCH_SECONDS: Final = 30.0
"""Seconds after which a batch's run begins no further slot. The run finishes the current slot."""


def tag_objects(context: dg.OpExecutionContext, io: SlotIOManager, *, seconds: float | None = None) -> None:
    """Tags the objects that were committed since the last pass. If slots have changed, logs an observation of
    `{source}_summary` with the numbers.

    After `seconds`, no further slot is begun: the next batch or sweep tags the remaining objects. Cost: the requests of
    `tag_committed`.
    """
    if not io.source.input.tags:
        return
    try:
        done = tag_committed(io.source, seconds=seconds, progress=context.log.info)
    except S3NotifyError as error:
        context.log.warning("committed objects are not tagged: %s", error)
        return
    if done.refused:
        context.log.warning("the store refused tags, for example: %s", done.refused)
    if done.slots:
        counts = {f"objects_tagged_{outcome}": number for outcome, number in done.counts.items()}
        found = {"slots_tagged": done.slots - done.left, "slots_left_to_tag": done.left, **counts}
        context.log_event(dg.AssetObservation(f"{io.name}_summary", metadata=found))
