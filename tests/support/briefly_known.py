"""For tests that change topics in real time: a client remembers a topic for only 50 ms. All clients must be in this
process.
"""

import pytest

from s3notify_platform.protocols.notification_queue import NotificationQueue


@pytest.fixture
def briefly_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the default time for which queues in this process remember a topic."""
    defaults = NotificationQueue.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "known_seconds", 0.05)
