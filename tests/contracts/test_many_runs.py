"""Many concurrent runs, each for one slot of a user's own slot asset: one log accepts them all, and no run is lost."""

import pytest

from tests.support.ingested import Place
from tests.support.many_runs import processes, run_all
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


def test_runs_of_one_process_share_versions(ministack: S3Server) -> None:
    """The first run commits alone. Runs that arrive during the first run's commit are committed together."""
    found, _ = run_all(Place(ministack, slots=200))
    assert found.version <= 20


@pytest.mark.parametrize("runs", [40, pytest.param(200, marks=pytest.mark.thorough)])
def test_runs_with_separate_caches_all_commit(ministack: S3Server, runs: int) -> None:
    """Each run commits in the end, within the time limit of a commit. The runs are threads that share no cache of the
    log, as if each were a process.
    """
    with processes() as begin:
        run_all(Place(ministack, slots=runs), begin)
