"""Topics that are known for 50 ms, for tests that change topics in real time, with no other process."""

import pytest

from s3notify_platform.protocols.notification_queue import NotificationQueue


@pytest.fixture
def briefly_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets the default of all queues in this process."""
    defaults = NotificationQueue.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "known_seconds", 0.05)
