"""The deletion of an object that must be gone before the caller continues."""

from s3notify_platform.kernel.errors import UnavailableError
from s3notify_platform.kernel.ports import ObjectStore, Written


def delete_for_certain(store: ObjectStore, key: str) -> None:
    """Deletes the object, if it exists. `UnavailableError`: the object may still exist. The call may be repeated.

    `ObjectStore.delete` alone returns `Unknown` if the object may still exist, and a caller easily ignores this.
    """
    if not isinstance(outcome := store.delete(key), Written):
        raise UnavailableError(f"{key} may still exist ({outcome}): repeat the command")
