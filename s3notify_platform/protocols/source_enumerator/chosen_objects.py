"""Selection of the objects that a source reads below its prefix: by their keys, and by the time of their write. Pure.

An object that is not chosen is treated as if it did not exist: it is not read, is not in quarantine, and has no rows.
If such an object was read before the choice changed, its rows leave the table at the source's next listing. The setting
`on_delete` has no effect on these rows. For a deleted object, only the key counts, because its other facts are unknown.

Patterns have the syntax of `aws s3 sync --include`: `*` means any characters, also `/`; `?` means one character;
`[a-z]` means one of these characters. A pattern must match the whole rest of the key after the prefix. Matching takes
linear time for any key.

Hidden keys are the same as for Spark and Hive. A key is hidden if one of its parts below the prefix begins with `_` or
`.` and has no `=`, like `_SUCCESS`, `_temporary/…`, `.part-0.crc`. "Directories", which end with `/`, are hidden, too.
The parts `.` and `..` do not make a key hidden. No client can address a key with such a part, so another check reports
the key.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import translate
from functools import lru_cache

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.ports import ListedColumns, ObjectMeta

_HIDDEN = re.compile(r"(?:^|/)(?!\.\.?(?:/|\Z))[._][^/=]*(?=/|\Z)|/\Z")
_MAYBE_HIDDEN = re.compile(r"(?m)(?:^|/)[._]|/$")


def time_of(text: str) -> int | None:
    """Converts a time with its zone to whole seconds since 1970; None for an empty text. `UsageError` for other
    texts.
    """
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"modified_after {text!r}: give a time like 2026-01-31T12:00:00Z") from error
    if found.tzinfo is None:
        raise UsageError(f"modified_after {text!r}: add the time zone, like {text}Z")
    return int(found.timestamp())


@lru_cache(maxsize=64)
def _patterns(text: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(translate(pattern)) for pattern in text.split("|") if pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The objects below `prefix` that a source reads. The default chooses all objects.

    `own`: prefixes of the platform's objects, which no source reads. `include`, `exclude`: patterns separated by `|`;
    an empty `include` includes all. `modified_after`: whole seconds since 1970, because a HEAD shows no fractions of a
    second.
    """

    prefix: str = ""
    own: tuple[str, ...] = ()
    hidden: bool = True
    include: str = ""
    exclude: str = ""
    modified_after: int | None = None

    def why_not(self, key: str, meta: ObjectMeta | None = None) -> str:
        """The reason why an object is not chosen; "" if it is chosen. Without `meta`, only the key counts."""
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
        if meta is not None and self._is_early(meta.modified_ms):
            return "it was written before modified_after"
        return ""

    @property
    def needs_meta(self) -> bool:
        """True if the choice depends on more than an object's key. In this case, each entry with a chosen key costs a
        HEAD.

        A new condition by which an overwrite can make a chosen object unchosen needs care. A batch by entries would
        treat such an object as deleted, and `on_delete` would decide about its old rows. An overwrite never makes an
        object unchosen by `modified_after`.
        """
        return self.modified_after is not None

    def _is_early(self, modified_ms: int) -> bool:
        return self.modified_after is not None and modified_ms // 1000 < self.modified_after

    @property
    def _begun(self) -> str:
        """A text to put before the rest of a key: a letter if the prefix ends within a name, else ""."""
        return "x" if self.prefix and not self.prefix.endswith("/") else ""

    def covers(self, key: str) -> bool:
        """True if an object with this key is chosen, whatever its other facts are."""
        return not self.needs_meta and not self.why_not(key)

    def among(self, listed: ListedColumns) -> Sequence[bool] | None:
        """For each object, true if it is chosen; None if all are chosen."""
        keys = listed.keys
        by_object = self.include or self.exclude or self.needs_meta
        if not by_object and self._all_usual(keys):
            return None
        # An `ObjectMeta` for each listed object would double the time.
        return [
            not (self._is_early(modified_ms) or self.why_not(key))
            for key, modified_ms in zip(keys, listed.modified_ms, strict=True)
        ]

    def _all_usual(self, keys: Sequence[str]) -> bool:
        """True if certainly no key is the platform's own, and no key is left out as hidden.
        Tests many keys together, because a listing has millions of keys.
        """
        start = len(self.prefix)
        paths = "\n".join([self._begun + key[start:] for key in keys])
        visible = self.hidden or _MAYBE_HIDDEN.search(paths) is None
        return visible and not any(key.startswith(self.own) for key in keys)
