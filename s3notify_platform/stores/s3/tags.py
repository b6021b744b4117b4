"""Tags of object versions, by boto3."""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.faults import Fault, Verdict
from s3notify_platform.stores.s3.requests import S3Requests

TAGS_MAX: Final = 10
"""Of a version, as on S3."""

_TAG: Final = re.compile(r"((?!aws:)[\w .:/+@-]{1,128})=([\w .:/+@-]{0,256})")


def tags_of(text: str) -> dict[str, str]:
    """Tags written like `archive=yes, team=sales`. `UsageError` for what S3 does not take as tags. Pure."""
    found: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        if (tag := _TAG.fullmatch(pair)) is None:
            raise UsageError(
                f"committed_tags {pair[:200]!r}: write name=value; both of letters, digits, spaces and _.:/+-@, "
                "of at most 128 and 256 characters; names that begin with aws: are Amazon's"
            )
        found[tag[1]] = tag[2]
    if len(found) > TAGS_MAX:
        raise UsageError(f"committed_tags: {len(found)} tags, and an object has {TAGS_MAX} at most")
    return found


class ObjectTags(S3Requests):
    """The tags of one bucket's objects. Thread-safe."""

    def check_versioned(self) -> None:
        """`UsageError` unless whatever is written to the bucket now becomes a version with an id. 1 GET."""
        found = self._send(lambda: self.client.get_bucket_versioning(Bucket=self.config.bucket))
        if isinstance(found, Fault):
            raise self._unavailable(found)
        if found.get("Status") != "Enabled":
            raise UsageError(
                f"bucket {self.config.bucket!r} has no versions, and a tag could come to a version that is not "
                "committed: enable its versioning, or leave out committed_tags"
            )

    def add(
        self, key: str, version_id: str, tags: Mapping[str, str]
    ) -> Literal["added", "there", "gone", "full"]:
        """Add tags to this version beside its others; `full` if that would be more than it can have.

        S3 writes all tags of a version at once, and knows no condition for it: tags that others set between the two
        requests are lost. 1 GET, and 1 PUT unless they are there. `UnavailableError`: they may be added; repeat.
        """
        version: dict[str, Any] = {"Bucket": self.config.bucket, "Key": key, "VersionId": version_id}
        found = self._send(lambda: self.client.get_object_tagging(**version))
        if isinstance(found, Fault):
            return self._gone(found)
        before = {tag["Key"]: tag["Value"] for tag in found["TagSet"]}
        after = before | dict(tags)
        if after == before:
            return "there"
        if len(after) > TAGS_MAX:
            return "full"
        pairs: Any = [{"Key": name, "Value": value} for name, value in after.items()]
        written = self._send(lambda: self.client.put_object_tagging(**version, Tagging={"TagSet": pairs}))
        return self._gone(written) if isinstance(written, Fault) else "added"

    def _gone(self, fault: Fault) -> Literal["gone"]:
        if fault.verdict is not Verdict.MISSING:
            raise self._unavailable(fault)
        return "gone"
