"""`s3notify init --events` on MinIO: only an administrator can set its events up, so commands are printed."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from s3notify_platform.cli.main import main


class _Minio(BaseHTTPRequestHandler):
    server_version, sys_version = "MinIO", ""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Logs nothing."""


def test_commands_for_minio_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    with ThreadingHTTPServer(("127.0.0.1", 0), _Minio) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        given = ["init", "orders", "--events", "--bucket", "b", "--prefix", "raw/", "--endpoint-url", url]
        missing = CliRunner().invoke(main, given)
        assert "give --receiver" in missing.output
        ran = CliRunner().invoke(main, [*given, "--receiver", "https://inlet.example.com:8086/"])
        assert ran.exit_code == 0, ran.output
        assert "mc event add ALIAS/b arn:minio:sqs::s3notify_orders_" in ran.output
        assert "http: {host: 0.0.0.0, port: 8086" in ran.output
        for name, inlet in (("clicks", "http: {secret_envs: [CLICKS]}"), ("orders", "format: jsonl")):
            file = tmp_path / "defs" / name / "defs.yaml"
            file.parent.mkdir(parents=True)
            file.write_text(
                f"type: s3notify_platform.S3NotifyComponent\nattributes:\n  name: {name}\n  bucket: b\n"
                f"  prefix: {name}/\n  s3: {{endpoint_url: {url}}}\n  {inlet}\n"
            )
        shared = CliRunner().invoke(main, [*given, "--receiver", "https://inlet.example.com:8086/"])
        assert 'auth_token="$CLICKS"' in shared.output, "both sources share the inlet of clicks"
        assert "Add to its attributes" not in shared.output
        gone = CliRunner().invoke(main, [*given, "--remove"])
        assert "mc event remove ALIAS/b" in gone.output
        refused = CliRunner().invoke(main, [*given, "--by", "sns"])
        assert "only AWS has a choice" in refused.output
        for template in ("terraform", "cloudformation"):
            refused = CliRunner().invoke(main, [*given, "--print", template])
            assert (refused.exit_code, refused.stdout) == (1, ""), "the store knows nothing of AWS's queues"
            assert "this store is MinIO" in refused.output
            assert "`s3notify init orders --events --receiver URL`" in refused.output
        server.shutdown()
