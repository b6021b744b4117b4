"""The Dagster definitions that `workspace.yaml` loads: the component instances of a folder.

`S3NOTIFY_DEFS` names the folder; the default is `defs` in the working directory. The folder is imported as a package,
so a transform next to a `defs.yaml` has the import path `FOLDER.orders.module.function`. If the folder has no source,
the definitions have one asset, whose description says how to define a source.
"""

import sys
from importlib import import_module
from pathlib import Path

import dagster as dg

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.project import DEMO_FOLDER, FIRST_SOURCE, folders
from s3notify_platform.source.settings import DEFS_VARIABLE


def load(folder: Path) -> dg.Definitions:
    """The definitions of every component below `folder`. Raises `UsageError` if `folder` cannot be imported."""
    folder = folder.resolve()
    if not folder.is_dir() or not folder.name.isidentifier():
        raise UsageError(
            f"{DEFS_VARIABLE}={folder}: must be a folder, named like a Python module, with a defs.yaml in it"
        )
    if folder == DEMO_FOLDER:
        module = import_module("s3notify_platform.defs")
    else:
        sys.path.insert(0, str(folder.parent))
        module = import_module(folder.name)
    sources = dg.ComponentTree.from_module(defs_module=module, project_root=folder.parent).build_defs()
    if not (sources.assets or sources.jobs or sources.sensors):
        sources = _nothing()
    # This executor also serves backfills and runs from the UI. With a process for each step, each step would start
    # Python and Spark again.
    return dg.Definitions.merge(sources, dg.Definitions(executor=dg.in_process_executor))


def _nothing() -> dg.Definitions:
    return dg.Definitions(assets=[dg.AssetSpec("no_source_yet", description=FIRST_SOURCE)])


@dg.definitions
def defs() -> dg.Definitions:
    """All sources."""
    found = folders()
    return load(found[0]) if found else _nothing()
