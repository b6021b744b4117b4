"""Signature verification: requests signed by botocore, in a header or a presigned URL, are accepted until
they expire.
"""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from s3notify_platform.channels.front.sigv4 import (
    SKEW_SECONDS,
    DeniedError,
    check_signature,
    signed_of,
)
from s3notify_platform.channels.inlets.http_server import Head
from tests.support.front import KEY_ID, SECRET

REFUSED = pytest.raises(DeniedError)
HOST = "front.example:8087"
FORM = {"content-type": "application/x-www-form-urlencoded; charset=utf-8"}


def head_of(
    method: str = "PUT",
    target: str = "/landing?notification",
    body: bytes = b"<x/>",
    *,
    auth: Callable[..., Any] = S3SigV4Auth,
    service: str = "s3",
    headers: dict[str, str] | None = None,
    token: str | None = None,
    **more: Any,
) -> Head:
    """The head of a request that botocore has just signed."""
    request = AWSRequest(method=method, url=f"http://{HOST}{target}", data=body, headers=headers or {})
    auth(Credentials(KEY_ID, SECRET, token), service, "eu-central-1", **more).add_auth(request)
    sent = {name.lower(): value for name, value in request.headers.items()} | {"host": HOST}
    parts = urlsplit(request.url)
    return Head(method=method, path=parts.path, query=parts.query, headers=sent)


def believed(head: Head, body: bytes = b"<x/>", *, secret: str = SECRET, later: float = 0.0) -> str:
    signed = signed_of(head)
    signed.check_time(int((datetime.now(UTC).timestamp() + later) * 1000))
    check_signature(signed, head, body, secret)
    return signed.key_id


def denied(head: Head, body: bytes = b"<x/>", **more: Any) -> str:
    with REFUSED as error:
        believed(head, body, **more)
    assert SECRET not in str(error.value)
    return error.value.reason


def test_requests_signed_by_botocore_are_accepted() -> None:
    """Otherwise boto3 could not use the front. A request to S3 has the hash of the body in its head; a request to SNS
    does not.
    """
    assert believed(head_of()) == KEY_ID
    assert believed(head_of("GET", body=b""), b"") == KEY_ID
    body = b"Action=ListTopics&Version=2010-03-31"
    sns = head_of("POST", "/", body, auth=SigV4Auth, service="sns", headers=FORM)
    assert "x-amz-content-sha256" not in sns.headers
    assert believed(sns, body) == KEY_ID


def test_presigned_urls_are_accepted_until_they_expire() -> None:
    """Otherwise a presigned URL could be used after it has expired, or with a body that was not signed."""
    url = head_of("GET", body=b"", auth=S3SigV4QueryAuth, expires=60)
    assert "authorization" not in url.headers
    assert believed(url, b"") == KEY_ID
    assert believed(url, b"", later=50) == KEY_ID
    assert denied(url, b"", later=61) == "expired"
    assert denied(url, b"<x/>") == "body"
    assert denied(url, b"", later=-SKEW_SECONDS - 5) == "skew"
    action = head_of("GET", "/?Action=ListTopics", b"", auth=SigV4QueryAuth, service="sns", expires=60)
    assert believed(action, b"") == KEY_ID
    assert denied(action, b"Action=DeleteTopic") == "signature"


def test_a_vector_of_the_aws_test_suite_is_accepted() -> None:
    """The test vector is `get-vanilla`, with S3 as the service. Without a test vector of AWS, an error that botocore
    and this code share would not be found.
    """
    stamp, date = "20150830T123600Z", "20150830"
    canonical = "GET\n/\n\nhost:example.amazonaws.com\nx-amz-date:20150830T123600Z\n\nhost;x-amz-date\n"
    canonical += hashlib.sha256(b"").hexdigest()
    assert hashlib.sha256(canonical.encode()).hexdigest() == (
        "bb579772317eb040ac9ed261061d46c1f17a8133879d6129b6e1c25292927e63"
    )
    request = AWSRequest(method="GET", url="http://example.amazonaws.com/", headers={"X-Amz-Date": stamp})
    request.context["timestamp"] = stamp
    auth = SigV4Auth(Credentials(KEY_ID, SECRET), "s3", "us-east-1")
    signature = auth.signature(auth.string_to_sign(request, canonical), request)
    credential = f"{KEY_ID}/{date}/us-east-1/s3/aws4_request"
    value = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host;x-amz-date, Signature={signature}"
    headers = {"host": "example.amazonaws.com", "x-amz-date": stamp, "authorization": value}
    head = Head(method="GET", path="/", headers=headers)
    check_signature(signed_of(head), head, b"", SECRET)


@given(
    path=st.text("ab/ é+%~!", max_size=8),
    pairs=st.lists(st.tuples(st.text("aB=&é +~", max_size=4), st.text("b/= é&+%", max_size=4)), max_size=4),
    text=st.text("ab  ,;=", max_size=8),
)
def test_any_path_any_query_and_any_header_can_be_signed(
    path: str, pairs: list[tuple[str, str]], text: str
) -> None:
    """Otherwise requests with unusual characters would be refused, or would be accepted although they were changed."""
    query = urlencode([("k" + name, value) for name, value in pairs], quote_via=quote)
    target = f"/{quote(path)}?{query}"
    head = head_of("GET", target, b"", headers={"x-amz-note": f"n{text}n"})
    assert believed(head, b"") == KEY_ID
    assert denied(replace(head, path=head.path + "x"), b"") == "signature"
    assert denied(replace(head, query=f"{head.query}&kx=1"), b"") == "signature"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"method": "DELETE"}, "signature"),
        ({"path": "/other"}, "signature"),
        ({"query": "notification=x"}, "signature"),
        ({"query": "notification&x=1"}, "signature"),
    ],
)
def test_a_changed_head_is_refused(change: dict[str, Any], reason: str) -> None:
    assert denied(replace(head_of(), **change)) == reason


def test_a_changed_body_is_refused() -> None:
    """Otherwise an attacker on the network could replace a body together with its hash."""
    assert denied(head_of(), b"<y/>") == "body"
    head = head_of()
    fitting = {"x-amz-content-sha256": hashlib.sha256(b"<y/>").hexdigest()}
    assert denied(replace(head, headers={**head.headers, **fitting}), b"<y/>") == "signature"
    sns = head_of("POST", "/", b"Action=A", auth=SigV4Auth, service="sns", headers=FORM)
    assert denied(sns, b"Action=B") == "signature"


@pytest.mark.parametrize("claimed", ["UNSIGNED-PAYLOAD", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "x"])
def test_an_unsigned_body_is_refused(claimed: str) -> None:
    """Otherwise a client could declare in a header that the body is unsigned, and could send any body."""
    head = head_of(auth=SigV4Auth, headers={"x-amz-content-sha256": claimed})
    assert denied(head) == "body"


def test_another_secret_or_time_is_refused() -> None:
    assert denied(head_of(), secret="x" * 40) == "signature"
    assert believed(head_of(), later=SKEW_SECONDS - 5) == KEY_ID
    assert denied(head_of(), later=SKEW_SECONDS + 5) == "skew"
    assert denied(head_of(), later=-SKEW_SECONDS - 5) == "skew"


def test_unsigned_amazon_headers_are_refused() -> None:
    """Otherwise an attacker could add a header that changes the request's meaning. Unsigned headers of proxies must be
    allowed.
    """
    head = head_of()
    assert believed(replace(head, headers={**head.headers, "x-forwarded-for": "192.0.2.1"})) == KEY_ID
    assert denied(replace(head, headers={**head.headers, "x-amz-acl": "public"})) == "signature"
    assert denied(replace(head, headers={**head.headers, "host": "other"})) == "signature"
    without = {name: value for name, value in head.headers.items() if name != "host"}
    assert denied(replace(head, headers=without)) == "signature"


def test_temporary_credentials_and_other_services_are_refused() -> None:
    """Otherwise a signature for another service, or with a token that nobody verifies, would be accepted."""
    assert denied(head_of(token="t")) == "token"
    assert denied(head_of("GET", body=b"", auth=S3SigV4QueryAuth, token="t"), b"") == "token"
    assert denied(head_of(service="sqs")) == "malformed"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", "missing"),
        ("AWS AKID:c2lnbmF0dXJl", "version"),
        ("Bearer abc", "malformed"),
        ("AWS4-HMAC-SHA256", "malformed"),
        ("AWS4-HMAC-SHA256 ", "malformed"),
        ("AWS4-HMAC-SHA256 Credential=a/20150830/r/s3/aws4_request", "malformed"),
        ("AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host, Signature=" + "0" * 64, "malformed"),
        (
            "AWS4-HMAC-SHA256 Credential=a/20150830/r/s3/aws4_request, SignedHeaders=host, Signature=Ω",
            "malformed",
        ),
        (
            "AWS4-HMAC-SHA256 Credential=a/20150831/r/s3/aws4_request, SignedHeaders=host, Signature="
            + "0" * 64,
            "malformed",
        ),
    ],
)
def test_malformed_signatures_are_refused_with_their_reason(value: str, reason: str) -> None:
    headers = {"host": HOST, "x-amz-date": "20150830T123600Z", **({"authorization": value} if value else {})}
    with REFUSED as error:
        signed_of(Head(method="GET", path="/", headers=headers))
    assert error.value.reason == reason


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("X-Amz-Algorithm=AWS4-HMAC-SHA1", "malformed"),
        ("X-Amz-Algorithm=AWS4-HMAC-SHA256", "malformed"),
        ("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=604801", "malformed"),
        ("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=0", "malformed"),
        ("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires=-1", "malformed"),
        ("AWSAccessKeyId=a&Expires=1&Signature=b", "version"),
        ("notification", "missing"),
    ],
)
def test_malformed_presigned_urls_are_refused(query: str, reason: str) -> None:
    with REFUSED as error:
        signed_of(Head(method="GET", path="/", headers={"host": HOST}, query=query))
    assert error.value.reason == reason


def test_an_impossible_time_is_refused() -> None:
    stamp = "20151330T123600Z"
    value = (
        f"AWS4-HMAC-SHA256 Credential=a/{stamp[:8]}/r/s3/aws4_request, SignedHeaders=host;x-amz-date, "
        f"Signature={'0' * 64}"
    )
    head = Head(method="GET", path="/", headers={"host": HOST, "x-amz-date": stamp, "authorization": value})
    assert denied(head) == "malformed"
