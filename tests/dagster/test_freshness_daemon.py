"""The freshness policy of a source's queue, as Dagster's daemon evaluates it."""

import sys
from collections.abc import Callable
from pathlib import Path
from time import time

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import freeze_time
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.freshness import FreshnessDaemon

from s3notify_platform.source.settings import DEFS_VARIABLE
from tests.support.cursors import store_cursor
from tests.support.site import Site

pytestmark = [pytest.mark.spark, pytest.mark.server]

QUEUE = dg.AssetKey("orders_queue")
FRESH_SECONDS = 0.001
"""Each change that waits is late. Dagster's shortest policy fails a minute after the last materialization."""


def test_the_daemon_fails_the_policy_if_a_change_waits_too_long(
    site_of: Callable[..., Site], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise alerts of Dagster would not notice that no run commits changes, or would not end afterwards."""
    site = site_of(fresh_seconds=FRESH_SECONDS)
    given = {
        "name": "orders",
        "bucket": site.component.bucket,
        "prefix": "raw/",
        "slots": site.component.slots,
        "fresh_seconds": FRESH_SECONDS,
    }
    folder = tmp_path / "fresh_sources" / "orders"
    folder.mkdir(parents=True)
    (folder / "defs.yaml").write_text(
        yaml.safe_dump({"type": "s3notify_platform.S3NotifyComponent", "attributes": given})
    )
    monkeypatch.setenv(DEFS_VARIABLE, str(folder.parent))
    monkeypatch.setattr(sys, "path", [*sys.path])
    target = LoadableTargetOrigin(
        executable_path=sys.executable, module_name="s3notify_platform.definitions", attribute="defs"
    )
    load = InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(target, location_name="here"))

    def ticked(workspace: WorkspaceProcessContext, *, at: float | None = None) -> FreshnessState:
        """Does a tick of the upkeep. Then the daemon evaluates the policy, now or at this time in epoch seconds.
        Returns the state that Dagster has recorded.
        """
        store_cursor(site, site.cursor or "")
        for event in site.upkeep().asset_events:
            site.instance.report_runless_asset_event(event)
        with freeze_time(at or time()):
            assert not [error for error in FreshnessDaemon().run_iteration(workspace) if error]
        return site.instance.get_freshness_state_records([QUEUE])[QUEUE].freshness_state

    with WorkspaceProcessContext(site.instance, load) as workspace:
        site.settle()
        assert ticked(workspace) == FreshnessState.PASS
        last = site.instance.get_latest_materialization_event(QUEUE)
        assert last is not None
        site.write(3)
        assert ticked(workspace, at=last.timestamp + 60) == FreshnessState.PASS, "the policy has a minute"
        assert ticked(workspace, at=last.timestamp + 60.001) == FreshnessState.FAIL
        site.settle()
        assert ticked(workspace) == FreshnessState.PASS
