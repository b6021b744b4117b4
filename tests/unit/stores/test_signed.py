"""Requests that are signed and sent without the SDK's client: where they go, and what becomes of answers."""

import io
import json
import select
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from botocore.awsrequest import AWSResponse, HeadersDict

from s3notify_platform.kernel.errors import UnavailableError, UsageError
from s3notify_platform.kernel.ports import ABSENT, IfMatch, Unknown, Written
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.dynamodb.dynamo_table import Applied, DynamoTable, Refused
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.store import bucket_url

KEYS = {"access_key_id": "id", "secret_access_key": "secret", "session_token": "token", "region": "eu-1"}
ITEM = {"path": {"S": "é"}, "stamp": {"B": b"\x00\xff"}, "n": {"N": "1"}}


class Empty(io.BytesIO):
    """The body of an answer, for botocore."""

    def stream(self):
        return iter(())


class Site:
    """A server that answers each request with the next of `answers`: status, body."""

    def __init__(self):
        self.seen, self.answers, self.clients = [], [], []
        self.leaves = False
        """Whether it closes each connection without a word."""
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                site.clients.append(self.client_address)
                self.close_connection = site.leaves
                site.seen.append((self.command, self.path, self.headers, body))
                status, said, *more = site.answers.pop(0)
                self.send_response(status)
                for name, value in more:
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(said)

            do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 - named by `http.server`

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def site():
    site = Site()
    yield site
    site.server.shutdown()
    site.server.server_close()


@pytest.fixture
def store(site):
    store = S3ObjectStore(S3Config(bucket="b", endpoint_url=site.url, **KEYS), attempts=1)
    yield store
    store.close()


@pytest.fixture
def table(site):
    table = DynamoTable(DynamoConfig(table="t", endpoint_url=site.url, **KEYS), attempts=1)
    yield table
    table.close()


@pytest.mark.parametrize(
    ("endpoint", "bucket", "url"),
    [
        ("https://s3.eu-west-1.amazonaws.com", "a-b", "https://a-b.s3.eu-west-1.amazonaws.com"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "a", "https://a.s3.cn-north-1.amazonaws.com.cn"),
        ("https://s3.eu-west-1.amazonaws.com", "a.b", "https://s3.eu-west-1.amazonaws.com/a.b"),
        ("http://ceph:8000/", "a", "http://ceph:8000/a"),
        ("https://notamazonaws.com", "a", "https://notamazonaws.com/a"),
    ],
)
def test_where_a_bucket_is(endpoint, bucket, url):
    assert bucket_url(endpoint, bucket) == url


def test_what_an_object_store_sends(site, store):
    """A key as it is, its condition unquoted, as the user of the configuration."""
    site.answers = [(204, b""), (200, b"", ("ETag", '"e"'))]
    assert store.delete("a b/é+%2F?#", precondition=IfMatch(etag="e1")) == Written(etag=None)
    assert store.put("k", b"body", precondition=ABSENT, metadata={"writer": "w"}) == Written(etag="e")
    (method, path, headers, _), (_, _, put, body) = site.seen
    assert (method, path) == ("DELETE", "/b/a%20b/%C3%A9%2B%252F%3F%23")
    assert (headers["If-Match"], headers["X-Amz-Security-Token"]) == ("e1", "token")
    assert "/eu-1/s3/aws4_request" in headers["Authorization"]
    assert (put["If-None-Match"], put["x-amz-meta-writer"], body) == ("*", "w", b"body")


def test_what_a_head_says(site, store):
    more = [("ETag", '"e"'), ("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT"), ("X-Amz-Meta-Writer", "w")]
    site.answers = [(200, b"12345", *more)]
    found = store.head("k")
    assert (found.etag, found.size, found.modified_ms) == ("e", 5, 1445412480000)
    assert found.metadata == {"writer": "w"}


def test_metadata_that_no_header_holds(site, store):
    with pytest.raises(UsageError, match="ASCII"):
        store.put("k", b"", metadata={"a": "é"})
    assert not site.seen


@pytest.mark.parametrize(
    ("status", "said", "verdict"),
    [
        (503, b"<Error><Code>SlowDown</Code></Error>", UnavailableError),
        (500, b"<Error><Code>InternalError</Code></Error>", Unknown),
        (502, b"no XML \xff", Unknown),
        (403, b"<Error><Code>InvalidAccessKeyId</Code></Error>", UsageError),
        (404, b"<Error><Code>NoSuchBucket</Code></Error>", UsageError),
    ],
)
def test_errors_of_an_object_store(site, store, status, said, verdict):
    """Sent once, and judged by what the answer says."""
    site.answers = [(status, said)]
    if verdict is Unknown:
        assert isinstance(store.delete("k", precondition=IfMatch(etag="e")), Unknown)
    else:
        with pytest.raises(verdict):
            store.delete("k", precondition=IfMatch(etag="e"))
    assert len(site.seen) == 1


def test_what_a_table_sends(site, table):
    """The operation's name, and bytes in base64; they come back as bytes."""
    stored = {**ITEM, "stamp": {"B": b64encode(b"\x00\xff").decode()}}
    site.answers = [(200, b"{}"), (200, json.dumps({"Item": stored}).encode()), (200, b"{}")]
    assert table.write("put_item", Item=ITEM) == Applied()
    assert table.get({"path": {"S": "é"}}) == ITEM
    assert table.get({"path": {"S": "é"}}) is None
    method, path, headers, body = site.seen[0]
    assert (method, path, headers["X-Amz-Target"]) == ("POST", "/", "DynamoDB_20120810.PutItem")
    assert headers["Content-Type"] == "application/x-amz-json-1.0"
    assert "/eu-1/dynamodb/aws4_request" in headers["Authorization"]
    assert json.loads(body) == {"TableName": "t", "Item": stored}


def test_what_was_in_the_way(site, table):
    """The item that a refused write found, with its bytes."""
    said = {
        "__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
        "Item": {"stamp": {"B": b64encode(b"\x01").decode()}},
    }
    site.answers = [(400, json.dumps(said).encode())]
    found = table.write("put_item", Item=ITEM, ConditionExpression="attribute_not_exists(path)")
    assert found == Refused(found={"stamp": {"B": b"\x01"}})


@pytest.mark.parametrize("said", [b"<html>", b"[]", b'{"__type": 1}', b""])
def test_answers_that_are_not_a_table_s(site, table, said):
    """Nobody knows what became of the write."""
    site.answers = [(500, said)]
    assert isinstance(table.write("put_item", Item=ITEM), Unknown)


def test_an_answer_that_cannot_be_read(site, table):
    site.answers = [(200, b'{"Item": ')]
    assert isinstance(table.write("put_item", Item=ITEM), Unknown)


def test_a_server_that_is_not_there(site, table):
    """Certainly nothing was written."""
    site.server.shutdown()
    site.server.server_close()
    with pytest.raises(UnavailableError, match="nothing was written"):
        table.write("put_item", Item=ITEM)


def test_connections_are_kept(site, store):
    site.answers = [(204, b"")] * 3
    for _ in range(3):
        assert store.delete("k") == Written(etag=None)
    assert len({*site.clients}) == 1


def test_a_connection_that_the_server_closed_is_not_used(site, store):
    """Else nobody would know what became of the request."""
    site.leaves, site.answers = True, [(204, b"")] * 3
    for _ in range(3):
        assert store.delete("k", precondition=IfMatch(etag="e")) == Written(etag=None)
        (connection,) = store.signed._http._idle
        select.select([connection.sock], [], [], 10)
    assert len({*site.clients}) == 3


def test_an_answer_that_breaks_off(site, table):
    site.leaves = True
    site.answers = [(200, b"{}", ("Content-Length", "9"))]
    assert isinstance(table.write("put_item", Item=ITEM), Unknown)
    assert not table.signed._http._idle


def test_through_a_proxy(site, monkeypatch):
    monkeypatch.setenv("http_proxy", site.url)
    monkeypatch.delenv("no_proxy", raising=False)
    store = S3ObjectStore(S3Config(bucket="b", endpoint_url="http://ceph.invalid", **KEYS), attempts=1)
    site.answers = [(204, b"")]
    assert store.delete("k") == Written(etag=None)
    assert [path for _, path, _, _ in site.seen] == ["http://ceph.invalid/b/k"]
    store.close()


def test_an_access_point_is_left_to_the_sdk():
    """Its host is another one. Conditions, metadata and the key of encryption go along, and the answer is read."""
    point = "arn:aws:s3:eu-west-1:123456789012:accesspoint/ours"
    store = S3ObjectStore(S3Config(bucket=point, kms_key_id="alias/k", **{**KEYS, "region": "eu-west-1"}))
    seen = []

    def stand_in(request, **_):
        seen.append((request.method, request.url, request.headers))
        headers = {"ETag": '"e"', "Content-Length": "3", "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
        return AWSResponse(request.url, 200, HeadersDict({**headers, "x-amz-meta-writer": "w"}), Empty())

    store.client.meta.events.register("before-send.s3", stand_in)
    assert store.put("k", b"1", precondition=ABSENT, metadata={"writer": "w"}) == Written(etag="e")
    assert store.delete("k", precondition=IfMatch(etag="e")) == Written(etag=None)
    found = store.head("k")
    assert (found.etag, found.size, found.metadata) == ("e", 3, {"writer": "w"})
    assert {url for _, url, _ in seen} == {
        "https://ours-123456789012.s3-accesspoint.eu-west-1.amazonaws.com/k"
    }
    put, delete, _ = (headers for _, _, headers in seen)
    assert (put["If-None-Match"], put["x-amz-meta-writer"]) == (b"*", b"w")
    assert put["x-amz-server-side-encryption-aws-kms-key-id"] == b"alias/k"
    assert delete["If-Match"] == b"e"
    store.close()
