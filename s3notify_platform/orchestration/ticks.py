"""State that the ticks of a sensor share within one process.

Dagster opens an instance for each tick of a sensor that takes resources. Each time, the instance's storages read all
their migrations from disk. These reads take two thirds of the CPU time of a tick that finds nothing. So sensors that
tick every few seconds declare no resources, and build them on an instance that stays open.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import dagster as dg

from s3notify_platform.orchestration.dagster_internals import lend_instance
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.source_assets import SourceAssets

_OPENED: Final[list[tuple[Any, dg.DagsterInstance]]] = []
_OPENING: Final = Lock()


def with_requirements(
    resources: Mapping[str, dg.ResourceDefinition], keys: Iterable[str]
) -> dict[str, dg.ResourceDefinition]:
    """The resources of these keys, and all resources that these resources require, including the project's own
    resources.
    """
    needed = {*keys}
    while (
        more := {k for name in needed for k in resources[name].get_required_resource_keys(resources)} - needed
    ):
        needed |= more
    return {name: resources[name] for name in needed}


@contextmanager
def tick_of(
    context: dg.SensorEvaluationContext, assets: SourceAssets
) -> Iterator[tuple[SlotIOManager, dg.DagsterInstance]]:
    """The source's IO manager and Dagster's instance, for one tick of a sensor without `required_resource_keys`."""
    repository = context.repository_def
    if repository is None or context.instance_ref is None:  # called directly, with resources and instance
        yield assets.io_of(context), context.instance
        return
    instance = _opened(context.instance_ref)
    lend_instance(context, instance)
    wanted = with_requirements(repository.get_top_level_resources(), [assets.io_key])
    with dg.build_resources(wanted, instance=instance) as found:
        yield getattr(found, assets.io_key), instance


def _opened(reference: Any) -> dg.DagsterInstance:
    with _OPENING:
        if not _OPENED or _OPENED[0][0] != reference:
            _OPENED[:] = [(reference, dg.DagsterInstance.from_ref(reference))]
        return _OPENED[0][1]
