"""Compares a policy with the permissions that IAM would require for recorded requests."""

import json
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from s3notify_platform.deploy import Places
from tests.contracts.fault_proxy import Answered

ACCOUNT = "123456789012"

Need = tuple[str, str]
"""An action, and the ARN of its resource. If the resource is a table, '#' and the item's partition follow the ARN."""


def places_of(platform_bucket: str, **more: Any) -> Places:
    """The places of the source `orders`. The source's objects are in a separate bucket; the platform's objects are in
    `platform_bucket`.
    """
    return Places(
        bucket="source",
        prefix="raw/",
        platform_bucket=platform_bucket,
        platform_prefix="_s3notify/orders/",
        keyspace_prefix="_s3notify/orders/keyspace/",
        **more,
    )


def needs(requests: Iterable[Answered]) -> set[Need]:
    """The permissions that these requests need, by the tables of actions in the documentation of S3 and DynamoDB."""
    return {need for request in requests for need in _needs(request)}


def _needs(request: Answered) -> list[Need]:
    if target := request.headers.get("x-amz-target"):
        body = json.loads(request.body)
        item = body.get("Key") or body.get("Item") or {"partition": body["ExpressionAttributeValues"][":v"]}
        (partition,) = (item[name]["S"] for name in ("partition", "path") if name in item)
        where = f"arn:aws:dynamodb:us-east-1:{ACCOUNT}:table/{body['TableName']}#{partition}"
        return [(f"dynamodb:{target.rpartition('.')[2]}", where)]
    url = urlsplit(request.path)
    bucket, _, key = unquote(url.path.lstrip("/")).partition("/")
    bucket_arn, object_arn = f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/{key}"
    of_upload = "uploadId" in parse_qs(url.query)
    if not key and "uploads" in parse_qs(url.query, keep_blank_values=True):
        return [("s3:ListBucketMultipartUploads", bucket_arn)]
    if not key:
        assert request.method == "HEAD" or "list-type" in parse_qs(url.query), request
        return [("s3:ListBucket", bucket_arn)]
    match request.method:
        case "GET" if of_upload:
            return [("s3:ListMultipartUploadParts", object_arn)]
        case "DELETE" if of_upload:
            return [("s3:AbortMultipartUpload", object_arn)]
        case "GET" | "HEAD":
            found = [("s3:GetObject", object_arn)]
        case "PUT" | "POST":
            found = [("s3:PutObject", object_arn)]
        case "DELETE":
            found = [("s3:DeleteObject", object_arn)]
        case _:
            raise AssertionError(request)
    if source := request.headers.get("x-amz-copy-source"):
        found.append(("s3:GetObject", f"arn:aws:s3:::{unquote(source).lstrip('/')}"))
    if "if-match" in request.headers:
        found.append(("s3:GetObject", object_arn))
    if request.status == 404:
        # Without this permission, the answer would have been 403 and not 404.
        found.append(("s3:ListBucket", bucket_arn))
    return found


def allowed(policy: dict[str, object], need: Need) -> bool:
    """The decision of IAM: True if an Allow matches and no Deny matches."""
    return not refused(policy, [need])


def refused(policy: dict[str, object], wanted: Iterable[Need]) -> set[Need]:
    """The needed permissions that the policy denies or does not allow."""
    granted, denied = _pairs(policy), _pairs(policy, "Deny")
    return {
        need
        for need in wanted
        if not any(_grants(grant, need) for grant in granted)
        or any(_grants(denial, need) for denial in denied)
    }


def unused(policy: dict[str, object], wanted: Iterable[Need]) -> set[Need]:
    """The permissions that the policy allows, although no request needed them."""
    return {grant for grant in _pairs(policy) if not any(_grants(grant, need) for need in wanted)}


def _pairs(policy, effect="Allow"):
    return {
        (action, resource)
        for statement in policy["Statement"]
        if statement["Effect"] == effect
        for action in statement["Action"]
        for resource in _resources(statement)
    }


def _resources(statement):
    resources = _several(statement["Resource"])
    if ":dynamodb:" not in resources[0]:
        return resources
    keys = statement.get("Condition", {}).get("ForAllValues:StringLike", {"dynamodb:LeadingKeys": ["*"]})
    return [f"{table}#{pattern}" for table in resources for pattern in keys["dynamodb:LeadingKeys"]]


def _several(found):
    return [found] if isinstance(found, str) else found


def _grants(grant: Need, need: Need) -> bool:
    (action, resource), (wanted, arn) = grant, need
    return action == wanted and fnmatchcase(arn, resource)
