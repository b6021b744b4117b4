"""Compares the bytes that batches write again with the bytes that they change. Pure.

If rows of an object are withdrawn, their packs are written again without these rows. If overwritten objects are spread
over the table, one batch may write most of the table again. `overwrites: vectors` avoids these rewrites.

The facts are in the versions of the log. A file with a batch's own rows has the label of the batch. This label is a
higher number than the labels of the removed files. All other files that a batch adds were written again, except merged
files.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from s3notify_platform.kernel.limits import REWRITE_WARN_BYTES, REWRITE_WARN_TIMES
from s3notify_platform.table.delta.actions import ANY_LABEL, LogVersion

ROUND: Final = "WRITE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrites:
    """Bytes of files. `again`: the bytes that were written again without the withdrawn rows. `changed`: the bytes of
    files with the batches' own rows, and the bytes of the withdrawn rows.
    """

    again: int = 0
    changed: int = 0

    @property
    def too_many(self) -> bool:
        """True if the bytes that were written again are more than `REWRITE_WARN_TIMES` times the changed bytes, and at
        least `REWRITE_WARN_BYTES`.
        """
        return self.again >= REWRITE_WARN_BYTES and self.again > REWRITE_WARN_TIMES * self.changed


def rewrites_of(version: LogVersion) -> Rewrites:
    """Returns the bytes of one version, or 0 if no batch has made the version."""
    if version.foreign or version.operation != ROUND:
        return Rewrites()
    hidden = {add.path for add in version.adds} & {gone.path for gone in version.removes}
    adds = [add for add in version.adds if add.data_change and add.path not in hidden]
    removes = [gone for gone in version.removes if gone.data_change and gone.path not in hidden]
    newest = max((gone.until for gone in removes if gone.until != ANY_LABEL), default=0)
    again = sum(add.size for add in adds if add.since <= newest)
    own = sum(add.size for add in adds if add.since > newest)
    withdrawn = max(0, sum(gone.size for gone in removes) - again)
    return Rewrites(again=again, changed=own + withdrawn)


def total(of: Collection[Rewrites]) -> Rewrites:
    """Returns the bytes of several versions together."""
    return Rewrites(again=sum(each.again for each in of), changed=sum(each.changed for each in of))
