"""Ways for changes into the notification queue, and out of it.

`QueuedPublisher` announces what our own writers write; `inlets` take in what others report; `delivery` pushes topics to
their endpoints; the reconciler finishes what writers left half done. Inlets and outlets are services, registered in
`registry`.
"""

from s3notify_platform.channels.pending_change import Refused
from s3notify_platform.channels.publisher import Keyspace, QueuedPublisher

__all__ = ["Keyspace", "QueuedPublisher", "Refused"]
