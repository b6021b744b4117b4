"""The Dagster definitions that `workspace.yaml` loads: the component instances of a folder.

`S3NOTIFY_DEFS` names the folder; without it, the demo's source is loaded. The folder is imported as a package,
so a transform next to a `defs.yaml` has the import path `FOLDER.orders.module.function`.
"""

import os
import sys
from importlib import import_module
from pathlib import Path

import dagster as dg

from s3notify_platform.errors import UsageError

DEFS_VARIABLE = "S3NOTIFY_DEFS"


def load(folder: Path) -> dg.Definitions:
    """The definitions of every component below `folder`; `UsageError` if it is no such folder."""
    folder = folder.resolve()
    if not folder.is_dir() or not folder.name.isidentifier():
        raise UsageError(
            f"{DEFS_VARIABLE}={folder}: must be a folder with a defs.yaml in it, named like a Python module"
        )
    package = Path(__file__).parent
    if folder == package / "defs":
        module = import_module("s3notify_platform.defs")
    else:
        sys.path.insert(0, str(folder.parent))
        module = import_module(folder.name)
    sources = dg.ComponentTree.from_module(defs_module=module, project_root=folder.parent).build_defs()
    # Also for runs from the UI and backfills: a process for each step would start Python and Spark again.
    return dg.Definitions.merge(sources, dg.Definitions(executor=dg.in_process_executor))


@dg.definitions
def defs() -> dg.Definitions:
    """All sources."""
    return load(Path(os.environ.get(DEFS_VARIABLE) or Path(__file__).parent / "defs"))
