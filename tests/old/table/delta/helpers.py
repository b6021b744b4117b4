"""What the tests of the view share."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from s3notify_platform.slots import Slot
from tests.support.viewed import Place, Viewed, by_delta_rs

SLOTS = [Slot(n) for n in range(8)]


def ids(*values: int, **more: Any) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64()), **more})


def over(viewed: Viewed, store: Any) -> Viewed:
    """The same table through another store."""
    return Viewed(store=store, clock=viewed.clock, pinned=viewed.pinned)


def same(viewed: Viewed, folder: Path) -> None:
    """What delta-rs reads is what our own reader reads."""
    found = by_delta_rs(Place(uri=viewed.copied_to(folder)))
    assert found == viewed.rows(SLOTS)


def actions(viewed: Viewed, version: int, kind: str) -> list[dict[str, Any]]:
    lines = viewed.log_objects()[f"{version:020d}.json"].splitlines()
    return [action[kind] for action in map(json.loads, lines) if kind in action]
