"""`s3notify units`: systemd units for a machine that always runs Dagster."""

import sys
from pathlib import Path

import click

from s3notify_platform.cli.printing import say_wrapped
from s3notify_platform.source.settings import DEFS_VARIABLE

_folder = click.Path(path_type=Path, file_okay=False, resolve_path=True)


@click.command(short_help="Write systemd units for Dagster and warm workers.")
@click.option("--into", type=_folder, metavar="FOLDER", required=True, help="Folder for the units.")
@click.option(
    "--home",
    type=_folder,
    metavar="FOLDER",
    required=True,
    help="Dagster's home; dagster.yaml is written there.",
)
@click.option(
    "--defs",
    metavar="FOLDER",
    type=click.Path(path_type=Path, exists=True, file_okay=False, resolve_path=True),
    envvar=DEFS_VARIABLE,
    default=Path("defs"),
    show_default=True,
    help="Folder with FOLDER/SOURCE/defs.yaml for each source.",
)
@click.option("--user", default="s3notify", show_default=True, help="User of the services.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the UI.")
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    metavar="PORT",
    default=3000,
    show_default=True,
    help="Port of the UI.",
)
@click.option(
    "--postgres",
    is_flag=True,
    help="Store Dagster's state in PostgreSQL, at DAGSTER_POSTGRES_URL, instead of files in its home.",
)
def units(*, into: Path, home: Path, defs: Path, user: str, host: str, port: int, postgres: bool) -> None:
    """Write systemd units for the processes of `s3notify dev`: code server, webserver, daemon and warm workers.

    Existing files are not changed; their names are printed. Dagster's UI has no login: put a proxy with a login before
    the UI. For PostgreSQL, pip install dagster-postgres, and begin the URL with postgresql+psycopg2://.

    \b
    useradd --system s3notify
    s3notify units --into /etc/s3notify --home /var/lib/s3notify --postgres
    chown -R s3notify: /var/lib/s3notify
    editor /etc/s3notify/environment
    chmod 600 /etc/s3notify/environment
    systemctl link /etc/s3notify/*.service
    systemctl enable --now /etc/s3notify/s3notify.target

    The user must also be able to read the YAML and the Python environment. The file `environment` has lines NAME=VALUE:
    credentials, AWS_REGION, DAGSTER_POSTGRES_URL.

    After a change of the YAML, reload the code location in the UI. On Kubernetes and ECS, use Dagster's own charts and
    launchers: each run then starts its own process. Such a run has a warm Spark only if the run uses Spark Connect.
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
            say_wrapped(
                f"{path}: exists with other content, not changed"
                if path.read_text() != text
                else f"{path}: exists already"
            )
        else:
            say_wrapped(f"{path}: written")
