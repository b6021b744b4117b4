"""Many runs at once, each of one slot of a user's own slot asset: one log takes them all, and none is lost."""

import pytest

from tests.support.ingested import Place
from tests.support.many_runs import processes, run_all
from tests.support.servers import S3Server

pytestmark = pytest.mark.server


def test_runs_of_one_process_share_versions(ministack: S3Server) -> None:
    """The first goes alone; those that come meanwhile go together."""
    found, _ = run_all(Place(ministack, slots=200))
    assert found.version <= 20


@pytest.mark.parametrize("runs", [40, pytest.param(200, marks=pytest.mark.thorough)])
def test_runs_that_are_processes_of_their_own(ministack: S3Server, runs: int) -> None:
    """Each is first in the end, before the time is over that a commit takes at most."""
    with processes() as begin:
        run_all(Place(ministack, slots=runs), begin)
