"""Tags of object versions, by boto3."""

from collections.abc import Mapping
from typing import Any, Literal

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.stores.faults import Fault, Verdict
from s3notify_platform.stores.rules import TAGS_MAX
from s3notify_platform.stores.s3.requests import S3Requests


class ObjectTags(S3Requests):
    """The tags of one bucket's objects. Thread-safe."""

    def check_versioned(self) -> None:
        """Raises `UsageError` if the bucket does not give each new object a version id. Cost: 1 GET."""
        found = self._send(lambda: self.client.get_bucket_versioning(Bucket=self.config.bucket))
        if isinstance(found, Fault):
            raise self._unavailable(found)
        if found.get("Status") != "Enabled":
            raise UsageError(
                f"bucket {self.config.bucket!r} has no versions, so a tag could be put on a version that is not "
                "committed: enable its versioning, or leave out committed_tags"
            )

    def add(
        self, key: str, version_id: str, tags: Mapping[str, str]
    ) -> Literal["added", "there", "gone", "full"]:
        """Adds tags to this version, and keeps the version's other tags. Returns `full` if the version would then have
        more than `TAGS_MAX` tags.

        S3 overwrites all tags of a version in one request, without a condition. So tags that others set between our GET
        and our PUT are lost. Requests: 1 GET, and 1 PUT unless the version has the tags already. `UnavailableError`:
        the tags may have been added; repeat the call.
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
