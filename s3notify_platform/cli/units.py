"""`s3notify units`: systemd units for a machine that runs Dagster for good."""

import sys
from pathlib import Path

import click

from s3notify_platform.cli.printing import say
from s3notify_platform.source.settings import DEFS_VARIABLE

_folder = click.Path(path_type=Path, file_okay=False, resolve_path=True)


@click.command(short_help="Write systemd units for Dagster, its code and warm workers.")
@click.option("--into", type=_folder, required=True, help="Folder to write the units to.")
@click.option("--home", type=_folder, required=True, help="Dagster's home; dagster.yaml is written to it.")
@click.option(
    "--defs",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    envvar=DEFS_VARIABLE,
    default=Path("defs"),
    show_default=True,
    help="Folder with FOLDER/SOURCE/defs.yaml for each source.",
)
@click.option("--user", default="s3notify", show_default=True, help="User that the services run as.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the UI listens on.")
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=3000, show_default=True, help="Port of the UI."
)
@click.option(
    "--postgres",
    is_flag=True,
    help="Dagster's storage is PostgreSQL, at DAGSTER_POSTGRES_URL; else files in its home.",
)
def units(*, into: Path, home: Path, defs: Path, user: str, host: str, port: int, postgres: bool) -> None:
    """Write systemd units of what `s3notify dev` starts: code server, webserver, daemon and warm workers.

    Files that exist are left as they are, and named. Dagster's UI has no login: put a proxy before it that has one.
    On PostgreSQL, pip install dagster-postgres, and begin the URL with postgresql+psycopg2://.

    \b
    useradd --system s3notify
    s3notify units --into /etc/s3notify --home /var/lib/s3notify --postgres
    chown -R s3notify: /var/lib/s3notify    # it must also be able to read the YAML and the Python environment
    editor /etc/s3notify/environment        # lines NAME=VALUE: credentials, AWS_REGION, DAGSTER_POSTGRES_URL; chmod 600
    systemctl link /etc/s3notify/*.service && systemctl enable --now /etc/s3notify/s3notify.target

    After a change of the YAML, reload the code location in the UI. On Kubernetes and ECS, use Dagster's own charts and
    launchers: each run then has a process of its own, whose Spark is warm if it is reached by Spark Connect.
    """  # noqa: D301 - click's own mark
    from s3notify_platform.local.systemd_units import Machine

    machine = Machine(
        python=Path(sys.executable),
        into=into,
        home=home,
        defs=defs,
        user=user,
        host=host,
        port=port,
        postgres=postgres,
    )
    for path, text in machine.files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x") as file:
                file.write(text)
        except FileExistsError:
            say(f"{path}: exists, left as it is" if path.read_text() != text else f"{path}: the same")
        else:
            say(f"{path}: written")
