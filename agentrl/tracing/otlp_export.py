"""Sends spans to a collector of OpenTelemetry, by OTLP over HTTP.

Invariants:
- Spans wait in a bounded queue of a thread; a collector that is down or slow delays nothing, and spans that do not fit
  into the queue are dropped.
- The names of attributes follow the conventions for generative AI and MCP of the schema that is named here.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from agentrl import __version__
from agentrl.errors import ConfigError
from agentrl.tracing import spans
from agentrl.tracing.spans import Span

SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
"""The conventions are still in development, so the version is sent too. This is the last one that has those for
generative AI and MCP in one schema with all others."""
MOST_WAITING = 4096
SENT_EVERY_MS = 1000
ANSWERS_WITHIN_S = 10
ENDS_WITHIN_S = 3.0

log = logging.getLogger("traces")


def start(endpoint: str, headers: Mapping[str, str], service: str, resource: Mapping[str, str]) -> Callable[[], None]:
    """Export all spans of this process from now on; `service` and `resource` describe it. Returns a function that ends
    the export."""
    try:
        exporter: Any = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        sdk: Any = importlib.import_module("opentelemetry.sdk.trace")
        export: Any = importlib.import_module("opentelemetry.sdk.trace.export")
        resources: Any = importlib.import_module("opentelemetry.sdk.resources")
        api: Any = importlib.import_module("opentelemetry.trace")
        scope: Any = importlib.import_module("opentelemetry.sdk.util.instrumentation")
    except ImportError as missing:
        raise ConfigError(
            f"tracing.endpoint needs the package {missing.name}.", hint="`pip install 'agentrl[otel]'`"
        ) from missing
    sender = exporter.OTLPSpanExporter(endpoint=endpoint, headers=dict(headers), timeout=ANSWERS_WITHIN_S)
    processor = export.BatchSpanProcessor(
        sender, max_queue_size=MOST_WAITING, schedule_delay_millis=SENT_EVERY_MS, max_export_batch_size=512
    )
    of_process = resources.Resource({"service.namespace": "agentrl", "service.name": service, **resource}, SCHEMA)
    of_program = scope.InstrumentationScope("agentrl", __version__, SCHEMA)

    def send(span: Span) -> None:
        trace_id, flags = int(span.context.trace_id, 16), api.TraceFlags(api.TraceFlags.SAMPLED)
        own = api.SpanContext(trace_id, int(span.context.span_id, 16), is_remote=False, trace_flags=flags)
        parent = api.SpanContext(trace_id, int(span.parent, 16), True, flags) if span.parent else None
        status = api.Status(api.StatusCode.ERROR, span.error) if span.error else api.Status(api.StatusCode.OK)
        processor.on_end(
            sdk.ReadableSpan(
                name=span.name,
                context=own,
                parent=parent,
                resource=of_process,
                attributes=span.attributes | ({"error.type": span.error} if span.error else {}),
                kind=api.SpanKind[span.kind.upper()],
                instrumentation_scope=of_program,
                status=status,
                start_time=span.began_ns,
                end_time=span.ended_ns,
            )
        )

    def stop() -> None:
        spans.set_exporter(None)
        # In a thread, because a collector that does not answer would block longer than a process may take to end.
        ending = threading.Thread(target=processor.shutdown, name="end of spans", daemon=True)
        ending.start()
        ending.join(ENDS_WITHIN_S)

    spans.set_exporter(send)
    log.info("spans are sent to %s", endpoint)
    return stop
