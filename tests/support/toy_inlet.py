"""An inlet for an imaginary service. To add a real inlet, a contributor writes a file like this one, and an entry in
`channels.registry`.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from s3notify_platform.channels.inlets.pull_inlet import PullInletSettings
from s3notify_platform.channels.registry import ServiceKind
from s3notify_platform.channels.service import ServiceContext
from s3notify_platform.kernel.ports import Message, MessageQueue
from s3notify_platform.kernel.setting import About

TOY = ServiceKind(
    name="toy",
    direction="inlet",
    settings_class="tests.support.toy_inlet:ToyInletSettings",
    summary="Receive changes that the toy service reports.",
)


class ToyQueue:
    """A message queue in memory; a message stays until it is deleted."""

    batch_size = 2

    def __init__(self, bodies):
        self.messages = [Message(id=str(n), body=b, receipt=str(n), receives=1) for n, b in enumerate(bodies)]
        self.deleted = []

    def receive(self, *, wait_seconds, visibility_seconds, limit):
        received, self.messages = tuple(self.messages[:limit]), self.messages[limit:]
        return received

    def delete(self, messages):
        self.deleted += [message.body for message in messages]
        return ()

    def hide(self, messages, seconds):
        return ()

    def max_receives(self):
        return None


@dataclass(frozen=True, kw_only=True)
class ToyInletSettings(PullInletSettings):
    """Ingest the events of the toy service."""

    queue_name: Annotated[str, About("Name of the toy's queue")]
    pause_seconds: Annotated[float, About("Between two messages", minimum=0.1, maximum=60)] = 1.0
    tries: Annotated[int, About("Number of attempts for each message")] = 3

    queues: ClassVar[dict[str, ToyQueue]] = {}

    def messages(self, context: ServiceContext) -> MessageQueue:
        return self.queues[self.queue_name]
