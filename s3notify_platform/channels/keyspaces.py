"""The sources of a bucket, as those see them who announce its changes."""

from dataclasses import dataclass

from s3notify_platform.protocols.keyspace import Publisher
from s3notify_platform.protocols.source_enumerator import Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """The signals of one source of the bucket, for the keys below `prefix`.

    `topic`: the source's own, if it skips hidden files (`Choice`): these go neither there nor to the signals.
    """

    publisher: Publisher
    prefix: str = ""
    topic: str = ""

    def takes(self, key: str) -> bool:
        """Whether a change of this key is one for the source."""
        return key.startswith(self.prefix) and not (self.topic and self.is_hidden(key))

    def is_hidden(self, key: str) -> bool:
        """Whether the key is one that sources skip by default."""
        return key.startswith(self.prefix) and bool(Choice(prefix=self.prefix, hidden=False).why_not(key))
