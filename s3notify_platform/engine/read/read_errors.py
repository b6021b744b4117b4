"""Decides if a failed read is the fault of the object or of the store. An outage of the store quarantines no object.

An object is at fault if the store refuses only its key, with a 4xx. Such an object belongs to another account, is
encrypted with its writer's own key, or has a name that the store does not accept. A failure is an outage if the store
does not answer, throttles, lacks an encryption key, or refuses the bucket or the credentials as a whole.
"""

from typing import Final, NamedTuple

from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.open_store import open_store, refusal_of

NOBODY: Final = ".s3notify-no-such-object"
"""A key below the source's prefix; no object has this key. A store that refuses even this key refuses every key."""


class Unread(NamedTuple):
    """The reason why an object could not be read. `outage`: the store was at fault, not the object."""

    reason: str
    outage: bool


def unread(config: S3Config, key: str, reason: str, *, prefix: str) -> Unread:
    """Finds out why a read of `key` failed. `reason`: the message of the read's error. `prefix`: the source's prefix.

    Cost: 1 GET without a read of the body, 1 HEAD of a missing key if the GET is refused, and retries.
    """
    store = open_store(config)
    try:
        refusal = refusal_of(store, key)
    except S3NotifyError as error:
        return Unread(str(error), outage=True)
    if not refusal:
        return Unread(reason, outage=True)
    try:
        store.head(f"{prefix}{NOBODY}")
    except S3NotifyError:
        return Unread(f"{refusal} (the store refuses every other key, too)", outage=True)
    return Unread(f"the store refuses this key, and no other: {refusal}", outage=False)
