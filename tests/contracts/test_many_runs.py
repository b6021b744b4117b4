"""Many concurrent runs, each for one slot of a user's own slot asset: one log accepts them all, and no run is lost."""

import pytest

from tests.support.ingested import Place
from tests.support.many_runs import processes, run_all
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


def test_runs_of_one_process_share_versions(ministack: S3Server) -> None:
    """Runs that arrive during a commit are committed together. If each run wrote a version of its own, 200
    concurrent runs would need 200 commits in sequence.
    """
    found, _ = run_all(Place(ministack, slots=200))
    assert found.version <= 20


@pytest.mark.parametrize("runs", [40, pytest.param(200, marks=pytest.mark.thorough)])
def test_runs_with_separate_caches_all_commit(ministack: S3Server, runs: int) -> None:
    """The runs are threads that share no cache of the log, as if each thread were a process. If a run lost every
    race, the run would fail after the time limit of a commit, and the rows of its slot would be missing.
    """
    with processes() as begin:
        run_all(Place(ministack, slots=runs), begin)
