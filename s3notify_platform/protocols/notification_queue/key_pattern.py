r"""Regular expressions on keys, matched in time that is bounded by the length of pattern and key, as RE2 does. Pure.

A pattern is for the whole key, as in Ceph. It has literal characters, `.`, classes like `[a-z]` and `\d`, groups, `|`,
and `*`, `+`, `?`, `{2}`, `{2,5}`. Not: what needs backtracking (references, looking around), lazy repeats, flags.

Every character of a pattern, `{2,5}` written out, is a position. After each character of a key, the positions that may
have matched it are one set, of which `follow` gives the positions that may come next (Glushkov's automaton).
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from s3notify_platform.errors import UsageError

PATTERN_MAX: Final = 200
"""Characters of a pattern."""

GROUPS_MAX: Final = 30

POSITIONS_MAX: Final = 256
"""Characters of a pattern in which every repeat is written out."""

_TOKEN: Final = re.compile(
    r"(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<or>\|)|(?P<repeat>[*+?]|\{\d{1,3}(?:,\d{0,3})?\})"
    r"|(?P<one>\[\^?\]?(?:\\.|[^\]\\\[&~|])*\]|\\[dDwWsS]|\\[^\w\s]|[^\\\[\]{}^$])",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the pattern: whether it matches nothing, and its first and last positions, as bits."""

    empty: bool
    first: int
    last: int


class KeyPattern:
    """One compiled pattern. `UsageError` for one that cannot be used."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        if len(pattern) > PATTERN_MAX or pattern.count("(") > GROUPS_MAX or not pattern.isprintable():
            raise self._error(f"at most {PATTERN_MAX} printable characters and {GROUPS_MAX} groups")
        end = -1 if pattern.endswith("$") and not pattern.endswith("\\$") else None
        self._tokens = self._tokens_of(pattern[:end].removeprefix("^"))
        self._ones: list[re.Pattern[str]] = []
        self._follow: list[int] = []
        self._made = 0
        whole, end = self._either(0)
        if end != len(self._tokens):
            raise self._error("a ) too many")
        self._whole = whole

    def matches(self, key: str) -> bool:
        """Whether the whole key matches."""
        if not key:
            return self._whole.empty
        fitting: dict[str, int] = {}
        at, may = 0, self._whole.first
        for character in key:
            if character not in fitting:
                fitting[character] = sum(
                    1 << place for place, one in enumerate(self._ones) if one.match(character)
                )
            at = may & fitting[character]
            if not at:
                return False
            may, left = 0, at
            while left:
                lowest = left & -left
                may |= self._follow[lowest.bit_length() - 1]
                left ^= lowest
        return bool(at & self._whole.last)

    def _error(self, why: str) -> UsageError:
        return UsageError(f"regular expression {self._pattern[:PATTERN_MAX]!r}: {why}")

    def _tokens_of(self, pattern: str) -> list[tuple[str, str]]:
        found, at = [], 0
        while at < len(pattern):
            token = _TOKEN.match(pattern, at)
            # Python takes -- in a class for what it may mean one day.
            if (
                token is None
                or token.lastgroup is None
                or (token.lastgroup == "one" and "--" in token.group())
            ):
                raise self._error(
                    f"{pattern[at : at + 10]!r} is not supported; escape what is meant literally"
                )
            found.append((token.lastgroup, token.group()))
            at = token.end()
        return found

    # Each reads from a token on, and returns what it has built, and the token after it.

    def _either(self, at: int) -> tuple[_Part, int]:
        found, at = self._sequence(at)
        while at < len(self._tokens) and self._tokens[at][0] == "or":
            other, at = self._sequence(at + 1)
            found = _Part(found.empty or other.empty, found.first | other.first, found.last | other.last)
        return found, at

    def _sequence(self, at: int) -> tuple[_Part, int]:
        found = _Part(True, 0, 0)
        while at < len(self._tokens) and self._tokens[at][0] not in ("or", "close"):
            part, after = self._one(at)
            if after < len(self._tokens) and self._tokens[after][0] == "repeat":
                part = self._repeated(at, part, self._tokens[after][1])
                after += 1
            found, at = self._joined(found, part), after
        return found, at

    def _one(self, at: int) -> tuple[_Part, int]:
        self._made += 1
        if self._made > 4 * POSITIONS_MAX or len(self._ones) >= POSITIONS_MAX:
            raise self._error(f"more than {POSITIONS_MAX} characters with its repeats written out")
        kind, text = self._tokens[at]
        if kind == "open":
            found, end = self._either(at + 1)
            if end == len(self._tokens):
                raise self._error("a ) is missing")
            return found, end + 1
        if kind == "repeat":
            raise self._error(f"nothing that {text} could repeat")
        try:
            self._ones.append(re.compile(text, re.DOTALL | re.ASCII))
        except re.error as error:
            raise self._error(str(error)) from None
        self._follow.append(0)
        place = 1 << (len(self._ones) - 1)
        return _Part(False, place, place), at + 1

    def _repeated(self, at: int, part: _Part, repeat: str) -> _Part:
        """`part`, which the token `at` begins, as often as `repeat` says: a copy for each time."""
        least, most = _times(repeat)
        copies = max(least, 1) if most is None else most
        if copies < max(least, 1):
            raise self._error(f"{repeat}: from a smaller to a larger number, which is above 0")
        parts = [part, *(self._one(at)[0] for _ in range(copies - 1))]
        if most is None:
            self._link(parts[-1].last, parts[-1].first)
        found = _Part(True, 0, 0)
        for place, each in enumerate(parts):
            found = self._joined(found, _Part(each.empty or place >= least, each.first, each.last))
        return found

    def _joined(self, one: _Part, other: _Part) -> _Part:
        self._link(one.last, other.first)
        return _Part(
            one.empty and other.empty,
            one.first | (other.first if one.empty else 0),
            other.last | (one.last if other.empty else 0),
        )

    def _link(self, last: int, first: int) -> None:
        while last:
            lowest = last & -last
            self._follow[lowest.bit_length() - 1] |= first
            last ^= lowest


def _times(repeat: str) -> tuple[int, int | None]:
    if repeat in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[repeat]
    low, comma, high = repeat[1:-1].partition(",")
    return int(low), int(high) if high else None if comma else int(low)


@lru_cache(maxsize=1024)
def key_pattern(pattern: str) -> KeyPattern:
    """The compiled pattern. `UsageError` for one that cannot be used."""
    return KeyPattern(pattern)
