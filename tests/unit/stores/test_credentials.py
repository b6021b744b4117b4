"""Credentials: looked up by the process that uses them, looked up again while it lives, and never pickled."""

import pickle
import re
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from botocore.exceptions import ProfileNotFound

from s3notify_platform.kernel.errors import UsageError
from s3notify_platform.kernel.limits import CREDENTIALS_SECONDS
from s3notify_platform.stores.config import DynamoConfig, S3Config
from s3notify_platform.stores.credentials import session_of
from s3notify_platform.stores.s3 import S3ObjectStore
from s3notify_platform.stores.s3.fast import FastObjectStore
from s3notify_platform.stores.s3.obstore_client import obstore_store
from tests.support.clocks import HandClock

SECRET = "sEcReT-0123456789"
NAMED = {"access_key_id_env": "MY_KEY", "secret_access_key_env": "MY_SECRET"}


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """Writes AWS's credentials file, with one profile."""

    def write(key, secret):
        (tmp_path / "credentials").write_text(
            f"[mine]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        )

    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    write("first", SECRET)
    return write


def keys_of(session):
    found = session.get_credentials().get_frozen_credentials()
    return found.access_key, found.secret_key


@pytest.mark.parametrize(
    "kind", [lambda **k: S3Config(bucket="b", **k), lambda **k: DynamoConfig(table="t", **k)]
)
def test_names_of_variables_can_be_pickled_and_secret_values_cannot(monkeypatch, kind):
    """Otherwise a secret would be in Spark's tasks, or a task could not find its credentials."""
    monkeypatch.setenv("MY_KEY", "id")
    monkeypatch.setenv("MY_SECRET", SECRET)
    named = kind(**NAMED)
    assert keys_of(session_of(named)) == ("id", SECRET)
    pickled = pickle.dumps(named)
    assert SECRET.encode() not in pickled
    assert pickle.loads(pickled) == named
    assert keys_of(session_of(pickle.loads(pickled))) == ("id", SECRET)
    given = kind(access_key_id="id", secret_access_key=SECRET)
    assert keys_of(session_of(given)) == ("id", SECRET)
    with pytest.raises(UsageError, match="sent with Spark's tasks: name environment variables") as refused:
        pickle.dumps(given)
    assert SECRET not in str(refused.value) + repr(given) + repr(named)


def test_a_missing_variable_is_reported(monkeypatch):
    """Otherwise the operator would not learn which variable is missing, or where to set it."""
    monkeypatch.setenv("MY_KEY", "id")
    config = S3Config(bucket="b", endpoint_url="http://127.0.0.1:9", **NAMED)
    for use in (lambda: S3ObjectStore(config).get("k"), lambda: obstore_store(config)):
        with pytest.raises(
            UsageError, match=r"no environment variable MY_SECRET.*every machine of the cluster"
        ):
            use()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"access_key_id_env": "MY_KEY"}, "key id and secret, or neither"),
        ({"secret_access_key": "x"}, "key id and secret, or neither"),
        ({**NAMED, "profile": "mine"}, "in one way"),
        ({**NAMED, "access_key_id": "a", "secret_access_key": "b"}, "in one way"),
    ],
)
def test_incomplete_or_double_credentials_are_refused(given, message):
    """Otherwise requests would be signed with other keys than the user meant."""
    with pytest.raises(UsageError, match=message):
        S3Config(bucket="b", **given)


@pytest.mark.parametrize("broken", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"])
@pytest.mark.parametrize("named", [True, False])
def test_keys_with_a_line_break_are_reported(monkeypatch, broken, named):
    """Otherwise the client would panic, and its error would end even a program that handles exceptions. Files that are
    mounted as secrets often end with a line break.
    """
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, f"{SECRET}\n" if name == broken else SECRET)
    names = {
        f"{field}_env": f"AWS_{field.upper()}"
        for field in ("access_key_id", "secret_access_key", "session_token")
    }
    config = S3Config(bucket="b", endpoint_url="http://127.0.0.1:9", **(names if named else {}))
    for use in (lambda: S3ObjectStore(config).get("k"), lambda: FastObjectStore(config).get("k")):
        with pytest.raises(UsageError, match=r"bucket 'b'.* line break.*remove it") as refused:
            use()
        assert SECRET not in str(refused.value)


def test_a_changed_profile_reaches_a_living_client(profile):
    """Otherwise a daemon would still use the old keys after they are rotated, or would read the file for each
    request.
    """
    clock = HandClock()
    session = session_of(S3Config(bucket="b", profile="mine"), clock)
    assert keys_of(session) == ("first", SECRET)
    profile("second", "changed")
    assert keys_of(session) == ("first", SECRET)
    clock.sleep(CREDENTIALS_SECONDS)
    assert keys_of(session) == ("second", "changed")


def test_keys_stay_in_use_while_the_profile_is_written(profile, tmp_path):
    """Otherwise a file that is half written would end a daemon."""
    clock = HandClock()
    session = session_of(S3Config(bucket="b", profile="mine"), clock)
    assert keys_of(session) == ("first", SECRET)
    (tmp_path / "credentials").write_text("")
    clock.sleep(CREDENTIALS_SECONDS)
    assert keys_of(session) == ("first", SECRET)
    profile("second", "changed")
    clock.sleep(CREDENTIALS_SECONDS)
    assert keys_of(session) == ("second", "changed")


def test_a_missing_profile_is_reported(profile):
    config = S3Config(bucket="b", profile="other")
    with pytest.raises(ProfileNotFound):
        session_of(config).get_credentials()
    for use in (lambda: S3ObjectStore(config).get("k"), lambda: obstore_store(config)):
        with pytest.raises(UsageError, match="other"):
            use()


@pytest.mark.server
def test_both_clients_sign_with_the_named_keys(seaweed, monkeypatch):
    """Otherwise one of the clients would be refused, or sign with other keys than the other client."""
    keys = seaweed.config("")
    monkeypatch.setenv("MY_KEY", keys.access_key_id)
    monkeypatch.setenv("MY_SECRET", keys.secret_access_key)
    config = S3Config(bucket=seaweed.make_bucket(), endpoint_url=seaweed.endpoint_url, **NAMED)
    store = S3ObjectStore(config)
    store.put("k", b"1")
    import obstore

    assert bytes(obstore.get(obstore_store(config), "k").bytes()) == b"1"
    monkeypatch.setenv("MY_SECRET", "wrong")
    with pytest.raises(UsageError, match="refused access"):
        S3ObjectStore(config).get("k")
    store.close()


class Sts(BaseHTTPRequestHandler):
    """Returns a role's keys, which expire soon. Records the key id that signed each request."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.users.append(re.search("Credential=([^/]+)/", self.headers["authorization"])[1])
        ends = datetime.now(UTC) + timedelta(seconds=30)
        body = (
            "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>of-role</AccessKeyId>"
            "<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
            f"<Expiration>{ends:%Y-%m-%dT%H:%M:%SZ}</Expiration>"
            "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
        ).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_role_is_renewed_with_the_current_keys(profile, monkeypatch):
    """Otherwise the role could not be renewed after the keys of its profile are rotated."""
    clock = HandClock()
    with ThreadingHTTPServer(("127.0.0.1", 0), Sts) as server:
        server.users = []
        serving = Thread(target=server.serve_forever)
        serving.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_port}")
        role = S3Config(bucket="b", profile="mine", role_arn="arn:aws:iam::123456789012:role/r")
        session = session_of(role, clock)
        assert keys_of(session)[0] == "of-role"
        profile("second", SECRET)
        clock.sleep(CREDENTIALS_SECONDS)
        assert keys_of(session)[0] == "of-role"
        server.shutdown()
        serving.join()
    assert (server.users[0], server.users[-1]) == ("first", "second")


@pytest.mark.server
def test_keys_that_are_added_later_are_found(ministack, tmp_path, monkeypatch):
    """Otherwise a client that was once used without keys would fail for ever."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    bucket = ministack.make_bucket()
    store = S3ObjectStore(S3Config(bucket=bucket, endpoint_url=ministack.endpoint_url, region="us-east-1"))
    for ask in (lambda: store.head("a"), lambda: store.list("")):
        with pytest.raises(UsageError, match="no credentials"):
            ask()
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = test\naws_secret_access_key = test\n"
    )
    assert store.head("a") is None
    assert store.list("").objects == ()
