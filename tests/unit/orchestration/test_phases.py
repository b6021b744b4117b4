"""The picture of a batch's phases: one after the other, to scale."""

from s3notify_platform.orchestration.assets import BAR, phase_bars


def test_bars_follow_each_other():
    """Together they fill the width, and a phase that took no time has none."""
    _, *lines, _ = phase_bars({"poll": 1.0, "launch": 0.0, "job": 3.0}).splitlines()
    starts = [line.find("█") for line in lines]
    assert [line.count("█") for line in lines] == [BAR // 4, 0, 3 * BAR // 4]
    assert starts == [starts[0], -1, starts[0] + BAR // 4]
    assert [line.split()[1] for line in lines] == ["1.000", "0.000", "3.000"]


def test_nothing_took_any_time():
    """As by a clock that stands still."""
    assert "█" not in phase_bars({"poll": 0.0})
