"""Assets of derived tables that are updated as a whole: `{name}_latest`, `{name}_clustered`.

The run of each batch updates these tables, and reports them. Each table also has its own step, by which a person can
update it. The steps rebuild the tables in a backfill, and in a run with the tag `s3notify/changes: full`.
"""

from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg

from s3notify_platform.kernel.errors import ConflictError
from s3notify_platform.orchestration.changes_input import is_full
from s3notify_platform.orchestration.io_manager import SlotIOManager
from s3notify_platform.orchestration.source_assets import SourceAssets, step_failures
from s3notify_platform.source.source import Source
from s3notify_platform.spark.failures import failure_of
from s3notify_platform.spark.following import follow
from s3notify_platform.table.follow import FollowResult


def build_following(settings: SourceAssets) -> list[dg.AssetsDefinition]:
    """The assets of the source's derived tables."""
    return [_asset(settings, name) for name in settings.io.source.kinds]


def _asset(settings: SourceAssets, name: str) -> dg.AssetsDefinition:
    spec = dg.AssetSpec(
        name,
        deps=[settings.name],
        description=_description(settings.io.source, name),
        kinds={"pyspark", "deltalake"},
        metadata=settings.place(name),
        skippable=True,
        **settings.spec | {"tags": settings.spec["tags"] | settings.warm_tags},
    ).with_io_manager_key(settings.io_key)

    @dg.multi_asset(name=f"{name}_follow", specs=[spec], **settings.step)
    def following(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        io = settings.io_of(context)
        with step_failures():
            io.settle_commit_mode()
            done = follow(io.spark.spark_session, io.source, name, rebuild=is_full(context.run.tags))
            yield dg.MaterializeResult(asset_key=name, metadata=_metadata(done))

    return following


def _description(source: Source, name: str) -> str:
    led = f"a Delta table that each batch of {source.name} updates"
    if name == source.location.latest_name and (latest := source.latest) is not None:
        deleted = (
            f" Keys whose newest row satisfies {latest.deleted_when} are left out."
            if latest.deleted_when
            else ""
        )
        return (
            f"The newest row of each {', '.join(latest.key)}, by {', '.join(latest.order_by)}: {led}. If "
            f"that row is withdrawn, the key's next-newest row returns.{deleted}"
        )
    columns = ", ".join(source.clustered.columns) if source.clustered is not None else ""
    return f"All rows of {source.name}, sorted by {columns}: {led}. Queries by these columns read few files."


def advance(
    context: dg.AssetExecutionContext,
    io: SlotIOManager,
    asset: str,
    *,
    batch: str,
    again: Callable[[], None],
    behind: dict[str, str],
) -> None:
    """Updates a derived table and reports its asset. After a failure, `behind` has the reason for this asset. A success
    removes the asset from `behind`.

    A failure of the update raises no error: the source's rows are already committed, and the run must still report
    these rows. `again` requests another batch. `again` is called only for failures that a retry may resolve.
    """
    try:
        done = follow(io.spark.spark_session, io.source, asset, batch=batch)
    except Exception as error:  # noqa: BLE001 - the docstring has the reason
        failure = failure_of(error)
        behind[asset] = f"{asset} is behind: {failure.reason}"
        context.log.warning(f"{behind[asset]}\n{failure.trace}".rstrip())
        if failure.outage or isinstance(error, ConflictError):
            again()
        return
    behind.pop(asset, None)
    if done.changed:
        event = dg.AssetMaterialization(asset, metadata=_metadata(done))
        context.op_execution_context.log_event(event)


def _metadata(done: FollowResult) -> dict[str, Any]:
    return {
        "dagster/row_count": done.rows,
        "version": done.version,
        "source_version": done.source,
        "changed": done.changed,
        **({"rebuilt": done.rebuilt} if done.rebuilt else {}),
    }
