"""`s3notify init --dagster-home` makes a Dagster home with warm runs. An existing `dagster.yaml` is not changed."""

from pathlib import Path

import dagster as dg
import pytest
import yaml
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.local.dagster_home import prepare_home
from s3notify_platform.orchestration.event_log import BatchedSqliteEventLog
from s3notify_platform.orchestration.warm import PromptRunCoordinator, WarmRunLauncher


def test_dagster_opens_the_home_that_is_written(tmp_path: Path) -> None:
    """If a class in `dagster.yaml` could not be loaded, `dg dev` would fail at its start. Without `start_supervisor`,
    no run would be warm until the user starts `s3notify warm`.
    """
    home = tmp_path / "new" / "home"
    done = CliRunner().invoke(main, ["init", "--dagster-home", str(home)])
    assert done.exit_code == 0, done.output
    assert f"export DAGSTER_HOME={home}; dg dev" in done.output
    with dg.DagsterInstance.from_config(str(home)) as instance:
        launcher = instance.run_launcher
        assert isinstance(launcher, WarmRunLauncher)
        assert launcher.inst_data is not None
        assert launcher.inst_data.config_dict == {"start_supervisor": True}
        assert isinstance(instance.run_coordinator, PromptRunCoordinator)
        assert isinstance(instance.event_log_storage, BatchedSqliteEventLog)
    again = CliRunner().invoke(main, ["init", "--dagster-home", str(home)])
    assert again.exit_code == 0
    assert "has all lines already" in again.output


def test_home_is_made_in_the_folder_of_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of an only source, the source's name is the default of NAME. If this default were treated like a
    typed NAME, the guide's command would be refused.
    """
    (tmp_path / "defs/orders").mkdir(parents=True)
    (tmp_path / "defs/orders/defs.yaml").write_text(
        "type: s3notify_platform.S3NotifyComponent\nattributes: {name: orders, bucket: acme-landing}\n"
    )
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["init", "--dagster-home", "home"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "home/dagster.yaml").exists()
    named = CliRunner().invoke(main, ["init", "orders", "--dagster-home", "home"])
    assert (named.exit_code, "takes no other options" in named.output) == (2, True)


def test_an_existing_file_stays_and_the_lines_that_it_lacks_are_printed(tmp_path: Path) -> None:
    own = "run_launcher: {module: dagster_docker, class: DockerRunLauncher}\n"
    own += "sensors: {use_threads: true, num_workers: 8}\n"
    (tmp_path / "dagster.yaml").write_text(own)
    done = CliRunner().invoke(main, ["init", "--dagster-home", str(tmp_path)])
    assert done.exit_code == 1
    assert (tmp_path / "dagster.yaml").read_text() == own
    assert "is not changed; for warm runs it needs, in place of its own run_launcher:" in done.output
    missing = yaml.safe_load(done.output.split(":\n\n", 1)[1])
    assert missing["run_launcher"]["class"] == "WarmRunLauncher"
    assert "sensors" not in missing
    both = yaml.safe_load(own) | missing
    (tmp_path / "dagster.yaml").write_text(yaml.safe_dump(both))
    assert prepare_home(tmp_path).missing == "", "the lines are all that it takes"


def test_a_storage_in_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text(
        "storage: {postgres: {postgres_url: {env: DAGSTER_POSTGRES_URL}}}\n"
    )
    assert "event_log_storage" not in yaml.safe_load(prepare_home(tmp_path).missing)


@pytest.mark.parametrize("text", ["- a list", "a: [", "words"])
def test_a_file_that_is_no_dagster_yaml_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "dagster.yaml").write_text(text)
    with pytest.raises(UsageError, match=r"dagster\.yaml"):
        prepare_home(tmp_path)


def test_the_name_of_a_source_is_refused_if_dagster_home_is_given(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["init", "orders", "--dagster-home", str(tmp_path / "home")])
    assert done.exit_code == 2
    assert not (tmp_path / "home").exists()
