"""systemd units for a machine that runs Dagster with these sources for good: what `s3notify dev` starts, as services.

Five units: the code server, the webserver, the daemon, the supervisor of warm runs, and a target that has them all.
Each may be killed or restarted at any time, and starts again: a batch that was open is taken up. Inlets, outlets and
the reconciler are in Dagster already, where the YAML enables them.
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
"""Where the code server listens, on loopback."""

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
# Its runs end with it, and are started again.
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
    """Where things are. All paths are absolute.

    `python`: of the environment that has the package. `into`: the folder of the files. `home`: Dagster's. `defs`: the
    sources. `postgres`: Dagster stores what it knows in PostgreSQL, at DAGSTER_POSTGRES_URL, else in files in `home`.
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
        """What to write where."""
        workspace = self.home / "workspace.yaml"
        code = f"-m s3notify_platform.definitions -h {HOST} -p {self.code_port}"
        quiet = "--log-level warning"  # else each tick is a line, also if nothing changes
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
                # Its workers have its environment, and load the same YAML: it starts again with the code server.
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
        """Where Java is: systemd has none of the variables of whoever writes the units."""
        if found := java_environment():
            return found
        home = os.environ.get("JAVA_HOME") or Path(str(shutil.which("java"))).resolve().parent.parent
        return {"JAVA_HOME": str(home)}

    def environment(self) -> dict[str, str]:
        """That of all units. No secret is in it."""
        return {
            "DAGSTER_HOME": str(self.home),
            "DAGSTER_EVENT_BATCH_SIZE": str(EVENTS_AT_ONCE),
            "PYTHONWARNINGS": QUIET,
            DEFS_VARIABLE: str(self.defs),
            **self._java(),
        }
