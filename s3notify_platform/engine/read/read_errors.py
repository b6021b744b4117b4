"""Whether it is an object's own fault that it cannot be read, or the store's. Only the former may put it to quarantine.

The store refuses one key, with a 4xx, where the object is another account's, is encrypted with a key that its writer
has kept, or has a name that the store does not take. It is an outage where the store does not answer, throttles, lacks
a key of encryption, or refuses bucket or credentials as a whole.
"""

from typing import Final, NamedTuple

from s3notify_platform.kernel.errors import S3NotifyError
from s3notify_platform.stores.config import S3Config
from s3notify_platform.stores.open_store import open_store, refusal_of

NOBODY: Final = ".s3notify-no-such-object"
"""Below the source's prefix: a store that refuses to say that nothing is there refuses everything."""


class Unread(NamedTuple):
    """Why an object could not be read. `outage`: nothing is known of the object itself."""

    reason: str
    outage: bool


def unread(config: S3Config, key: str, reason: str, *, prefix: str) -> Unread:
    """What a read that failed with `reason` says of the object under `key`. `prefix`: that of the source.

    1 GET whose body is not read; if it is refused, 1 HEAD of a name where nothing is (and its retries).
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
        return Unread(f"{refusal} (it refuses every other key too)", outage=True)
    return Unread(f"of all keys, the store refuses this one: {refusal}", outage=False)
