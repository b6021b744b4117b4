"""Which objects below a prefix a source reads: by their keys, and by when they were written. Pure.

An object that is not chosen is as if it was not there: it costs no request, is not in quarantine, and has no rows. So
one that was read before the choice changed leaves the table when the source is listed next, whatever `on_delete` is.

Patterns are those of `aws s3 sync --include`: `*` stands for any characters, also `/`, `?` for one, `[a-z]` for one of
these. They match what follows the prefix in a key, whole. Matching takes linear time, whatever the key.

Hidden are, as for Spark and Hive, keys of which a part below the prefix begins with `_` or `.` and has no `=`, like
`_SUCCESS`, `_temporary/…`, `.part-0.crc`; and "directories", which end with `/`. Not `.` and `..`: what no client can
address is named elsewhere.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import translate
from functools import lru_cache

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ListedColumns

_HIDDEN = re.compile(r"(?:^|/)(?!\.\.?(?:/|\Z))[._][^/=]*(?=/|\Z)|/\Z")
_MAYBE_HIDDEN = re.compile(r"(?m)(?:^|/)[._]|/$")


def time_of(text: str) -> int | None:
    """A time with its zone as whole seconds since 1970; None for an empty text. `UsageError` for anything else."""
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"modified_after {text!r}: give a time like 2026-01-31T12:00:00Z") from error
    if found.tzinfo is None:
        raise UsageError(f"modified_after {text!r}: say of which zone it is, like {text}Z")
    return int(found.timestamp())


@lru_cache(maxsize=64)
def _patterns(text: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(translate(pattern)) for pattern in text.split("|") if pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is chosen below `prefix`. The default: everything.

    `own`: prefixes of the platform's objects, which are no source's. `include`, `exclude`: patterns separated by `|`;
    an empty `include` includes all. `modified_after`: whole seconds since 1970; HEAD tells no less than a second.
    """

    prefix: str = ""
    own: tuple[str, ...] = ()
    hidden: bool = True
    include: str = ""
    exclude: str = ""
    modified_after: int | None = None

    def why_not(self, key: str, modified_ms: int | None = None) -> str:
        """Why an object is not chosen, for people; "" if it is. Without a time, by its key alone."""
        path = key[len(self.prefix) :]
        if not key.startswith(self.prefix):
            return f"it is not below {self.prefix!r}"
        if key.startswith(self.own):
            return "it is the platform's own object"
        if not self.hidden and (found := _HIDDEN.search(self._begun + path)):
            return f"hidden_files is skip, and {found[0].lstrip('/') or 'a directory'!r} is hidden"
        if self.include and not any(pattern.match(path) for pattern in _patterns(self.include)):
            return f"include {self.include!r} does not match {path!r}"
        if any(pattern.match(path) for pattern in _patterns(self.exclude)):
            return f"exclude {self.exclude!r} matches {path!r}"
        if (
            modified_ms is not None
            and self.modified_after is not None
            and modified_ms // 1000 < self.modified_after
        ):
            return "it was written before modified_after"
        return ""

    @property
    def _begun(self) -> str:
        """What stands for the beginning of a name within which the prefix ends."""
        return "x" if self.prefix and not self.prefix.endswith("/") else ""

    def covers(self, key: str) -> bool:
        """Whether an object of this key is chosen, whenever it was written."""
        return self.modified_after is None and not self.why_not(key)

    def among(self, listed: ListedColumns) -> Sequence[bool] | None:
        """Which of these objects are chosen; None: all of them."""
        keys = listed.keys
        by_object = self.include or self.exclude or self.modified_after is not None
        if not by_object and self._all_usual(keys):
            return None
        return [not self.why_not(*each) for each in zip(keys, listed.modified_ms, strict=True)]

    def _all_usual(self, keys: Sequence[str]) -> bool:
        """Whether no key can be hidden or the platform's own. At once for many: a listing has millions."""
        start = len(self.prefix)
        paths = "\n".join([self._begun + key[start:] for key in keys])
        visible = self.hidden or _MAYBE_HIDDEN.search(paths) is None
        return visible and not any(key.startswith(self.own) for key in keys)
