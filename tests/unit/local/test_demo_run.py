"""The end of the demo."""

from pathlib import Path
from typing import Self

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main
from s3notify_platform.local import demo_run
from s3notify_platform.local.demo_run import Demo, Verdict
from s3notify_platform.protocols.notification_queue import TopicSettings


@pytest.mark.parametrize(
    ("missing", "halfway", "queued", "well", "said"),
    [
        (0, False, 0, True, "in the table exactly once"),
        (0, True, 3, True, "in the table exactly once"),
        (7, True, 3, True, "stopped: 3 changes are not in the table yet"),
        (7, True, 0, True, "stopped: the unfinished writes are not in the table yet"),
        (7, False, 0, False, "differs from what was written"),
    ],
)
def test_the_demo_ends_well_unless_a_finished_round_differs(
    missing: int, halfway: bool, queued: int, well: bool, said: str
) -> None:
    """A demo that is stopped within a round has uncommitted writes. If such writes were an error, a user who stops the
    demo would see a failure. If differences after a finished round were no error, the demo would hide lost rows.
    """
    verdict = Verdict(rows=1, rejects=0, missing=missing, surplus=0, wrong_rejects=0)
    ended, line = verdict.ending(halfway=halfway, queued=queued)
    assert (ended, said in line) == (well, True)


class NoDagster:
    """The demo's Dagster, which never commits anything."""

    url = "http://127.0.0.1"

    def __init__(self, home: Path, **_settings: object) -> None:
        self.home = home
        home.mkdir()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None: ...

    def wait_ready(self) -> None: ...


@pytest.mark.server
@pytest.mark.parametrize(("once", "code"), [(["--once"], 130), ([], 0)])
def test_interrupted_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, once: list[str], code: int
) -> None:
    """With `--once`, exit code 0 would wrongly say that all rounds are in the table. Either way, the demo must print
    what is missing.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_run, "DagsterDev", NoDagster)
    monkeypatch.setattr(
        Demo, "_await_topic", lambda _, queue: queue.topics.create("orders", TopicSettings(prefix="orders/"))
    )
    monkeypatch.setattr(Demo, "_await_commit", interrupt)
    ran = CliRunner().invoke(main, ["demo", *once, "--folder", str(tmp_path), "--objects", "20"])
    assert ran.exit_code == code, ran.output
    assert "not in the table yet" in ran.output
