"""How the demo ends."""

import pytest

from s3notify_platform.local.demo import Verdict


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
def test_ending(missing: int, halfway: bool, queued: int, well: bool, said: str) -> None:
    """Stopped within a round, what waits is no fault; a difference after a round is one."""
    verdict = Verdict(rows=1, rejects=0, missing=missing, surplus=0, wrong_rejects=0)
    ended, line = verdict.ending(halfway=halfway, queued=queued)
    assert (ended, said in line) == (well, True)
