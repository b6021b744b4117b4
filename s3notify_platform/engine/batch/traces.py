"""OpenTelemetry traces: each batch is a span, which contains a span for each phase of the batch.

The spans are sent by OTLP over HTTP if the extra `traces` is installed and OTEL_EXPORTER_OTLP_ENDPOINT (or
OTEL_EXPORTER_OTLP_TRACES_ENDPOINT) is set. All other environment variables of OpenTelemetry take effect, too. An
unreachable collector delays no batch: spans are dropped, and a process that ends waits for `TIMEOUT_SECONDS` at most.
"""

import os
from collections.abc import Mapping
from functools import cache
from logging import getLogger
from threading import Thread
from typing import TYPE_CHECKING, Final

from s3notify_platform.kernel.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

TIMEOUT_SECONDS: Final = 5.0
"""Time limit of one request to the collector, unless OTEL_EXPORTER_OTLP_TIMEOUT sets another limit."""

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def trace_batch(
    source: str, batch: str, phases: Mapping[str, float], attributes: Mapping[str, str | int | float]
) -> None:
    """Records a batch that has just ended, with the seconds of its phases in order."""
    if (provider := _provider()) is None:
        return
    tracer = provider.get_tracer("s3notify_platform")
    ended_ns = SYSTEM_CLOCK.wall_ms() * 1_000_000
    at = began_ns = ended_ns - int(sum(phases.values()) * 1e9)
    about = {f"s3notify.{name}": value for name, value in attributes.items()}
    whole = tracer.start_span(
        f"batch of {source}",
        start_time=began_ns,
        attributes={"s3notify.source": source, "s3notify.batch": batch, **about},
    )
    from opentelemetry.trace import set_span_in_context

    inside = set_span_in_context(whole)
    for phase, seconds in phases.items():
        span = tracer.start_span(phase, context=inside, start_time=at)
        at += int(seconds * 1e9)
        span.end(at)
    whole.end(ended_ns)


def flush(seconds: float) -> None:
    """Sends the recorded spans, for at most `seconds`.

    Call this function in a process that may be killed after its work is done.
    """
    if (provider := _provider()) is not None:
        sending = Thread(target=provider.force_flush, daemon=True)
        sending.start()
        sending.join(seconds)


@cache
def _provider() -> "TracerProvider | None":
    if not any(map(os.environ.get, _ENDPOINTS)):
        return None
    given = "OTEL_EXPORTER_OTLP_TIMEOUT" in os.environ
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = OTLPSpanExporter(timeout=None if given else TIMEOUT_SECONDS)
    except ModuleNotFoundError:
        getLogger(__name__).warning(
            "batches are not traced, though OTEL_EXPORTER_OTLP_ENDPOINT is set: pip install 's3notify-platform[traces]'"
        )
        return None
    except ValueError as error:  # a variable of OpenTelemetry is invalid
        getLogger(__name__).warning("batches are not traced: %s", error)
        return None
    named = os.environ.get("OTEL_SERVICE_NAME", "s3notify")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: named}))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
