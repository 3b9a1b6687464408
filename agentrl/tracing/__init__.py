"""Trace ids and spans: which log lines and which work of several processes belong to one operation or one episode.

    trace_context   the ids, as W3C Trace Context has them, and which one is current
    log_format      log lines as text or as JSON objects with the current trace id
    spans           work with a beginning and an end
    otlp_export     spans to a collector of OpenTelemetry; the only file that imports it

Invariants:
- The trace of an operation follows from its id, and that of an episode from its record: nothing is looked up.
- Without an endpoint a span is one comparison, and nothing of OpenTelemetry is imported.
- No prompt, no output of a model and no argument or result of a tool is in a span.
"""
