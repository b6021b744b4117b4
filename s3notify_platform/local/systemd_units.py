"""systemd units that run Dagster with these sources permanently: the processes of `s3notify dev`, as services.

There are five units: the code server, the webserver, the daemon, the supervisor of warm runs, and a target with all of
them. Each unit may be killed or restarted at any time, and starts again; open batches are then continued. Dagster
itself runs the reconciler, and the inlets and outlets that the YAML enables.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.dagster_dev import EVENTS_AT_ONCE, INSTANCE, QUIET, storage
from s3notify_platform.local.java import java_environment
from s3notify_platform.local.process import HOST
from s3notify_platform.source.settings import DEFS_VARIABLE

CODE_PORT: Final = 4266
"""The code server's port, on loopback."""

_SERVICE: Final = """\
[Unit]
Description=s3notify: {what}
PartOf=s3notify.target{part_of}
After=network-online.target{after}
Wants=network-online.target

[Service]
User={user}
WorkingDirectory={folder}
Environment={environment}
# Lines NAME=VALUE: credentials, AWS_REGION, DAGSTER_POSTGRES_URL. Mode 0600
EnvironmentFile=-{into}/environment
ExecStart={command}
Restart=always
RestartSec=2
# When this service stops, its runs are stopped, too. The next start repeats them.
KillMode=control-group
TimeoutStopSec=30
NoNewPrivileges=yes
ProtectSystem=full

[Install]
WantedBy=s3notify.target
"""

_TARGET: Final = """\
[Unit]
Description=s3notify: Dagster, its code and its warm workers
Wants={units}

[Install]
WantedBy=multi-user.target
"""

_POSTGRES: Final = "storage: {postgres: {postgres_url: {env: DAGSTER_POSTGRES_URL}}}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Paths and options of an installation on one machine. All paths are absolute.

    `python`: the interpreter of the environment with the package. `into`: the folder for the units. `home`: Dagster's
    home. `defs`: the folder of the sources. `postgres`: if true, Dagster's storage is PostgreSQL at
    DAGSTER_POSTGRES_URL; otherwise, it is files in `home`.
    """

    python: Path
    into: Path
    home: Path
    defs: Path
    user: str
    host: str = HOST
    port: int = 3000
    code_port: int = CODE_PORT
    postgres: bool = False

    def files(self) -> dict[Path, str]:
        """The files to write, with their content."""
        workspace = self.home / "workspace.yaml"
        code = f"-m s3notify_platform.definitions -h {HOST} -p {self.code_port}"
        quiet = "--log-level warning"  # at a lower level, each tick writes a line, even if nothing changes
        services = {
            "code": ("code server", f"dagster code-server start {code} {quiet}"),
            "web": ("webserver", f"dagster-webserver -w {workspace} -h {self.host} -p {self.port}"),
            "daemon": ("daemon", f"dagster-daemon run -w {workspace} {quiet}"),
            "warm": ("warm workers", f"s3notify warm --home {self.home}"),
        }
        units = {
            self.into / f"s3notify-{name}.service": _SERVICE.format(
                what=what,
                after="" if name == "code" else " s3notify-code.service",
                # Warm workers have the code server's environment and YAML, so they restart with the code server.
                part_of=" s3notify-code.service" if name == "warm" else "",
                user=self.user,
                folder=self.defs.parent,
                environment=" ".join(f'"{key}={value}"' for key, value in self.environment().items()),
                into=self.into,
                command=f"{self.python.parent}/{command}",
            )
            for name, (what, command) in services.items()
        }
        server = {"host": HOST, "port": self.code_port, "location_name": "s3notify_platform.definitions"}
        return {
            self.home / "dagster.yaml": INSTANCE + (_POSTGRES if self.postgres else storage(self.home)),
            workspace: json.dumps({"load_from": [{"grpc_server": server}]}) + "\n",
            **units,
            self.into / "s3notify.target": _TARGET.format(units=" ".join(unit.name for unit in units)),
        }

    def __post_init__(self) -> None:
        for path in (self.python, self.into, self.home, self.defs):
            if {*str(path)} & {*' %"\\$'}:
                raise UsageError(f"{path}: units cannot have paths with spaces, quotes or the signs % and $")

    @staticmethod
    def _java() -> dict[str, str]:
        """The variables for Java. The units need these variables, because a unit does not get the user's variables."""
        if found := java_environment():
            return found
        home = os.environ.get("JAVA_HOME") or Path(str(shutil.which("java"))).resolve().parent.parent
        return {"JAVA_HOME": str(home)}

    def environment(self) -> dict[str, str]:
        """The environment of all units. The environment contains no secret."""
        return {
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_EVENT_BATCH_SIZE": str(EVENTS_AT_ONCE),
            "PYTHONWARNINGS": QUIET,
            DEFS_VARIABLE: str(self.defs),
            **self._java(),
        }
