"""A PostgreSQL server on 127.0.0.1, which ends with its `with` block. Install PostgreSQL by `apt-get install
postgresql`.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import free_ports
from tests.support.waiting import until

USER = "postgres"


@contextmanager
def running_postgres(folder: Path) -> Iterator[str]:
    """Yields the URL of an empty database.

    PostgreSQL refuses to run as root, so root starts it as the user of its package.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    assert found, "PostgreSQL is missing: apt-get install postgresql"
    programs, data = found[-1].parent, folder / "data"
    folder.mkdir()
    (port,) = free_ports(1, SYSTEM_CLOCK)
    served: dict[str, Any] = {"cwd": "/", "stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    if os.getuid() == 0:
        served |= {"user": USER, "group": USER, "extra_groups": []}
        subprocess.run(["chown", USER, folder], check=True)
        for above in (folder, *folder.parents):
            above.chmod(above.stat().st_mode | 0o011)
    subprocess.run([programs / "initdb", "-D", data, "-U", USER, "--auth=trust"], check=True, **served)
    listening = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder)]
    process = subprocess.Popen([programs / "postgres", "-D", data, *listening], **served)
    try:
        ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        until(lambda: subprocess.run(ready, check=False).returncode == 0, seconds=60)
        # Without the name of the driver, SQLAlchemy 2.1 would use psycopg 3, which dagster-postgres does not install.
        yield f"postgresql+psycopg2://{USER}@127.0.0.1:{port}/postgres"
    finally:
        process.terminate()
        process.wait(60)
