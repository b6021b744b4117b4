"""The ways of changes into the notification queue, and out of it.

`QueuedPublisher` writes objects and announces them; `inlets` take in changes that other systems report; `delivery`
pushes topics to their endpoints; the reconciler finishes the work of killed writers. Inlets and outlets are services,
registered in `registry`.
"""

from s3notify_platform.channels.pending_change import Refused
from s3notify_platform.channels.publisher import Keyspace, QueuedPublisher

__all__ = ["Keyspace", "QueuedPublisher", "Refused"]
