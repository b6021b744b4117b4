"""Stores a sensor's cursor as Dagster's daemon does."""

from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, SensorInstigatorData

from tests.support.site import Site


def store_cursor(site: Site, cursor: str, *, location: str = "anywhere", ticked: float = 2.0) -> None:
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "any")
    state = InstigatorState(
        RemoteInstigatorOrigin(repository, "orders_sensor"),
        InstigatorType.SENSOR,
        InstigatorStatus.RUNNING,
        SensorInstigatorData(last_tick_timestamp=ticked, cursor=cursor),
    )
    known = site.instance.get_instigator_state(state.instigator_origin_id, state.selector_id)
    (site.instance.update_instigator_state if known else site.instance.add_instigator_state)(state)
