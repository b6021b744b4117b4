"""Access by both clients: as another role, at the requester's cost, and encrypted with a key."""

import http.server
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs

import pytest
from dagster_aws.s3 import S3Resource

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.orchestration import S3NotifyComponent
from s3notify_platform.orchestration.resources import reach_of
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.credentials import session_of
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.fast import FastObjectStore

ROLE = "arn:aws:iam::123456789012:role/reader"
ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>
<AccessKeyId>ASIATEMPORARY</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"""


class Recorded:
    """A server that answers every request, and records it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        recorded = self

        class Answer(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                recorded.asked.append((self.command, headers, body))
                content = {"POST": ASSUMED.encode(), "GET": b"x", "HEAD": b"x"}.get(self.command, b"")
                self.send_response(200)
                for name, value in {
                    "content-length": str(len(content)),
                    "etag": '"1"',
                    "last-modified": "Sun, 22 Nov 2026 10:00:00 GMT",
                }.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_PUT = do_HEAD = do_POST = answer  # noqa: N815

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "own")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    found = Recorded()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", found.url)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.mark.parametrize("kind", [S3ObjectStore, FastObjectStore])
def test_requests_are_signed_by_the_assumed_role(recorded: Recorded, kind: type[Any]) -> None:
    """Otherwise requests would be sent as our own user, or the role would be refused without its external id."""
    config = S3Config(bucket="b", endpoint_url=recorded.url, role_arn=ROLE, external_id="theirs")
    kind(config).get("k")
    (assumed,) = (ask for ask in recorded.asked if ask[0] == "POST")
    assert "Credential=own/" in assumed[1]["authorization"]
    asked = parse_qs(assumed[2].decode())
    assert (asked["RoleArn"], asked["ExternalId"]) == ([ROLE], ["theirs"])
    (read,) = (ask for ask in recorded.asked if ask[0] == "GET")
    assert "Credential=ASIATEMPORARY/" in read[1]["authorization"]
    assert read[1]["x-amz-security-token"] == "t"


@pytest.mark.parametrize("kind", [S3ObjectStore, FastObjectStore])
def test_each_request_is_sent_as_requester_pays(recorded: Recorded, kind: type[Any]) -> None:
    """Otherwise S3 would refuse requests to a bucket whose requester pays."""
    store = kind(S3Config(bucket="b", endpoint_url=recorded.url, requester_pays=True))
    store.get("k")
    store.head("k")
    assert len(recorded.asked) == 2
    for _, headers, _body in recorded.asked:
        assert headers["x-amz-request-payer"] == "requester"
        assert "x-amz-request-payer" in headers["authorization"]


@pytest.mark.parametrize("kind", [S3ObjectStore, FastObjectStore])
def test_written_objects_are_encrypted_with_the_key(recorded: Recorded, kind: type[Any]) -> None:
    """Otherwise objects would be encrypted with another key, or reads would be refused because they name the key."""
    store = kind(S3Config(bucket="b", endpoint_url=recorded.url, kms_key_id="alias/ours"))
    store.put("k", b"1")
    store.get("k")
    (written,) = (headers for method, headers, _ in recorded.asked if method == "PUT")
    assert written["x-amz-server-side-encryption"] == "aws:kms"
    assert written["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/ours"
    (read,) = (headers for method, headers, _ in recorded.asked if method == "GET")
    assert "x-amz-server-side-encryption" not in read


def test_settings_of_the_component_reach_the_store() -> None:
    """Otherwise a setting of the component would be ignored without an error."""
    component = S3NotifyComponent(
        name="orders",
        bucket="b",
        s3={
            "profile": "mine",
            "role_arn": ROLE,
            "external_id": "x",
            "requester_pays": True,
            "kms_key_id": "alias/ours",
        },
    )
    found = component.assets().io.source.input.bucket
    assert (found.profile, found.role_arn, found.external_id) == ("mine", ROLE, "x")
    assert (found.requester_pays, found.kms_key_id) == (True, "alias/ours")
    assert reach_of(S3Resource(profile_name="mine"))[0]["profile"] == "mine"
    for field in ({"verify": False}, {"use_ssl": False}, {"max_attempts": 9}, {"use_unsigned_session": True}):
        with pytest.raises(UsageError, match=next(iter(field))):
            reach_of(S3Resource(**field))
    with pytest.raises(UsageError, match="role_arn"):
        DynamoConfig(table="t", external_id="x")


def test_a_role_is_assumed_at_the_first_request(recorded: Recorded) -> None:
    """Otherwise loading a definition would send requests to STS."""
    session_of(S3Config(bucket="b", role_arn=ROLE)).get_credentials()
    assert recorded.asked == []


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_messages_name_the_endpoint_that_aws_variables_set(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """Otherwise errors and `s3notify status` would name AWS although another server is used. An endpoint in the
    settings takes precedence over these variables.
    """
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    config = S3Config(bucket="b", region="r")
    assert config.place == "bucket 'b' at AWS S3 (r)"
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    assert config.place == "bucket 'b' at http://127.0.0.1:9"
    assert S3Config(bucket="b", endpoint_url="http://127.0.0.1:8").place == "bucket 'b' at http://127.0.0.1:8"
