"""An inlet for a made-up service, as a stranger would add it: this file, and a line in `channels.registry`."""

from typing import ClassVar

from pydantic import Field

from s3notify_platform.channels.inlets.pull import PullInletSettings
from s3notify_platform.channels.service import ServiceContext
from s3notify_platform.ports import Message, MessageQueue


class ToyQueue:
    """A message queue in memory; what is not deleted stays in it."""

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


class ToyInletSettings(PullInletSettings):
    """Take in what the toy service reports."""

    queue_name: str = Field(description="Name of the toy's queue.")
    pause_seconds: float = Field(default=1.0, gt=0, lt=60, description="Between two messages.")
    tries: int = Field(default=3, description="Of each message.")

    queues: ClassVar[dict[str, ToyQueue]] = {}

    def messages(self, context: ServiceContext) -> MessageQueue:
        return self.queues[self.queue_name]
