"""Measures the seconds that each test file takes. With several workers, the longest files start first. The durations
are shown at the end.

`poe test --store-durations` writes the measurements to `tests/durations.json`, which determines the order.
"""

import json
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STORED = ROOT / "tests" / "durations.json"
SHOWN = 25
SHOWN_FROM_SECONDS = 60.0
"""Durations are shown only after test runs that take at least this time. So a run of one short test file shows no
durations.
"""


class Durations:
    """The time that the tests of each file take, with their fixtures."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.config.getoption("--store-durations"):
            known = {name: seconds for name, seconds in _stored().items() if (ROOT / name).is_file()}
            known |= {name: round(seconds) for name, seconds in self.seconds.items()}
            kept = {name: known[name] for name in sorted(known) if known[name] >= 1}
            STORED.write_text(json.dumps(kept, indent=1) + "\n")
        if self.seconds.total() >= SHOWN_FROM_SECONDS:
            terminalreporter.section(f"slowest files, of {self.seconds.total():.0f} s in all")
            for name, seconds in self.seconds.most_common(SHOWN):
                terminalreporter.line(f"{seconds:7.1f} s  {name}")


def _stored() -> dict[str, int]:
    return dict(json.loads(STORED.read_text())) if STORED.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--store-durations", action="store_true", help=f"write {STORED.name}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        seconds = _stored()
        items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], 0))
