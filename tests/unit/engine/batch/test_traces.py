"""A batch as a trace, in a separate process, with and without a collector."""

import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from s3notify_platform.kernel.clock import SYSTEM_CLOCK
from s3notify_platform.local.process import free_ports

PROGRAM = """
from s3notify_platform.engine.batch.traces import trace_batch
trace_batch("orders", "b-1", {"poll": 1.5, "plan": 0.25, "commit": 0.5}, {"rows": 3})
"""


class Collector(ThreadingHTTPServer):
    """A collector that keeps the bodies of the requests."""

    bodies: list[bytes]


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        assert self.path == "/v1/traces"
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector(("127.0.0.1", 0), Handler) as server:
        server.bodies = []
        serving = Thread(target=server.serve_forever)
        serving.start()
        yield server
        server.shutdown()
        serving.join()


def run(program: str = PROGRAM, **environment: str) -> None:
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_COMPRESSION": "none", **environment}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_batch_is_a_trace(collector: Collector) -> None:
    """If the phases' spans had gaps or overlaps, a trace viewer would show wrong times for the phases. A person would
    then look for the cause of a slow batch in the wrong phase.
    """
    run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_port}")
    (body,) = collector.bodies
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"] == "s3notify"
    spans = {span.name: span for span in resource.scope_spans[0].spans}
    assert spans.keys() == {"batch of orders", "poll", "plan", "commit"}
    whole = spans["batch of orders"]
    about = {each.key: each.value for each in whole.attributes}
    assert (about["s3notify.batch"].string_value, about["s3notify.rows"].int_value) == ("b-1", 3)
    at = whole.start_time_unix_nano
    for name, seconds in {"poll": 1.5, "plan": 0.25, "commit": 0.5}.items():
        span = spans[name]
        assert span.parent_span_id == whole.span_id
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (at, at + int(seconds * 1e9))
        at = span.end_time_unix_nano
    assert at == whole.end_time_unix_nano


def test_a_killed_process_has_sent_its_flushed_spans(collector: Collector) -> None:
    ends = "from s3notify_platform.engine.batch.traces import flush\nimport os\nflush(20)\nos._exit(0)\n"
    run(PROGRAM + ends, OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{collector.server_port}")
    assert len(collector.bodies) == 1


def test_a_missing_collector_fails_nothing() -> None:
    """Otherwise a batch with committed rows would fail because no endpoint is set, or because the endpoint
    does not answer.
    """
    run()
    (port,) = free_ports(1, SYSTEM_CLOCK)
    run(OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}")
