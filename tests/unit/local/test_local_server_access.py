"""Other users of this machine reach the embedded server's ports. Without keys, these users can read, write and delete
nothing.
"""

import http.client
import json
import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import boto3
import grpc
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError

from s3notify_platform.kernel.ports import list_all
from s3notify_platform.local.server import LocalS3Server
from s3notify_platform.stores.s3 import S3ObjectStore

GRPC_METHODS = (
    "/filer_pb.SeaweedFiler/GetFilerConfiguration",
    "/master_pb.Seaweed/Statistics",
    "/volume_server_pb.VolumeServer/VolumeServerStatus",
)
LIVENESS = ("/status", "/healthz")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server started with umask 022 in an existing folder that is open to all."""
    folder = tmp_path_factory.mktemp("open") / "s3"
    folder.mkdir(mode=0o755)
    with LocalS3Server(folder) as server:
        server.create_bucket("private")
        store = S3ObjectStore(server.config("private"))
        store.put("a", b"secret")
        yield server
        assert store.get("a").body == b"secret"
        assert [found.key for found in list_all(store, "")] == ["a"]
        store.close()


def listening(server):
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[3].rpartition(":")[2]) for line in lines if f"pid={server.pid}," in line]


def state(server):
    return json.loads((server.folder / "server.json").read_text())


def asked(port, method, path, *, body=None, headers=None, tls=None):
    made = (
        http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=tls)
        if tls
        else http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    )
    try:
        made.request(method, path, body, headers or {})
        answer = made.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):  # the server sent no answer
        return 0, b""
    finally:
        made.close()


def context(server=None):
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    if server is not None:
        made.load_cert_chain(server.folder / "inner.crt", server.folder / "inner.key")
    return made


needs_ss = pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss to see which ports there are")


@pytest.mark.server
@needs_ss
def test_every_port_refuses_strangers(server):
    """Otherwise another user of the machine could read, change or delete the server's objects. Each of the
    eight ports gets requests to paths of S3, filer, volume and master. Each request is sent over plain HTTP,
    and over TLS without a certificate.
    """
    inner = state(server)
    # The master returns the id of a real chunk only to a client with the key.
    status, found = asked(inner["master_port"], "GET", "/dir/assign", tls=context(server))
    assert status == 200, "the master must answer with the key, else a refusal proves nothing"
    chunk = f"/{json.loads(found)['fid']}"
    paths = (
        "/", "/private/a", "/private/", "/buckets/private/a", "/buckets/private/?recursive=true", "/etc/", chunk,
        "/dir/assign", "/dir/status", "/dir/lookup?volumeId=1", "/vol/grow?count=1", "/vol/vacuum", "/vol/status",
        "/col/delete?collection=private", "/submit", "/ui/index.html", "/metrics", "/stats/memory", "/.tus/",
        "/debug/pprof/", "/cluster/status", *LIVENESS,
    )  # fmt: skip
    ports = listening(server)
    assert len(ports) == 8
    for port in ports:
        for path in paths:
            for method in ("GET", "PUT", "POST", "DELETE"):
                body = b"evil" if method in ("PUT", "POST") else None
                headers = {"tus-resumable": "1.0.0", "upload-length": "4"} if "tus" in path else {}
                for tls in (None, context()):
                    status, answer = asked(port, method, path, body=body, headers=headers, tls=tls)
                    if port == inner["s3_port"] and path in LIVENESS:
                        assert answer == b"" or status >= 400, "only that it is alive, and nothing more"
                    else:
                        assert status == 0 or status >= 400, (port, method, path, status, answer[:200])
                    assert b"secret" not in answer


@pytest.mark.server
@needs_ss
def test_every_port_refuses_grpc_without_a_certificate(server):
    """Otherwise another user of the machine could call the filer, the master or the volume server without S3 keys, and
    read or delete data. With the server's own certificate, three ports answer.
    """
    authority, key = ((server.folder / name).read_bytes() for name in ("inner.crt", "inner.key"))
    own = grpc.ssl_channel_credentials(authority, key, authority)
    foreign = grpc.ssl_channel_credentials(authority)
    answered = 0
    for port in listening(server):
        where = f"127.0.0.1:{port}"
        for method in GRPC_METHODS:
            for channel in (grpc.insecure_channel(where), grpc.secure_channel(where, foreign)):
                with channel, pytest.raises(grpc.RpcError) as refusal:
                    channel.unary_unary(method)(b"", timeout=20)
                assert refusal.value.code() is grpc.StatusCode.UNAVAILABLE, (port, method)
            with grpc.secure_channel(where, own) as channel:
                try:
                    channel.unary_unary(method)(b"", timeout=20)
                    answered += 1
                except grpc.RpcError:
                    pass
    assert answered == len(GRPC_METHODS)


@pytest.mark.server
def test_s3_refuses_strangers(server):
    """Requests without a signature, or signed with other keys, must be refused."""
    for signed in ({"config": Config(signature_version=UNSIGNED)}, {"aws_secret_access_key": "other"}):
        keys = {"aws_access_key_id": "other", "aws_secret_access_key": "x", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=server.endpoint_url, **keys | signed)
        for call in (
            lambda client=client: client.get_object(Bucket="private", Key="a"),
            lambda client=client: client.put_object(Bucket="private", Key="z", Body=b"evil"),
            lambda client=client: client.delete_object(Bucket="private", Key="a"),
            lambda client=client: client.list_objects_v2(Bucket="private"),
            lambda client=client: client.delete_bucket(Bucket="private"),
        ):
            with pytest.raises(ClientError) as refusal:
                call()
            assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
        client.close()


@pytest.mark.server
@needs_ss
def test_the_folder_is_private(server):
    """The folder must become private, even if it was open to all before. The key files in the folder must be private,
    too.
    """
    assert stat.S_IMODE(server.folder.stat().st_mode) == 0o700
    for name in ("server.json", "identities.json", "security.toml", "inner.key", "inner.crt"):
        assert stat.S_IMODE((server.folder / name).stat().st_mode) == 0o600
    sockets = [path for port in listening(server) for path in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]
    assert len(sockets) >= 4
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o022 == 0 for path in sockets)


@pytest.mark.server
def test_keys_in_the_environment_are_ignored(tmp_path, monkeypatch):
    """`WEED_…` variables would override the server's own files. Each start must make new keys."""
    with LocalS3Server(tmp_path / "first") as server:
        before = (server.folder / "security.toml").read_text()
    monkeypatch.setenv("WEED_GRPC_CA", "/nowhere")
    with LocalS3Server(tmp_path / "first") as server:
        assert (server.folder / "security.toml").read_text() != before
        server.create_bucket("private")
        assert asked(state(server)["filer_port"], "GET", "/buckets/", tls=context()) == (0, b"")
