"""The end of the demo."""

import pytest

from s3notify_platform.local.demo_run import Verdict


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
    """A demo that is stopped within a round has uncommitted writes. Such writes are not an error."""
    verdict = Verdict(rows=1, rejects=0, missing=missing, surplus=0, wrong_rejects=0)
    ended, line = verdict.ending(halfway=halfway, queued=queued)
    assert (ended, said in line) == (well, True)
