"""Trace ids and spans: they show which log lines and which work of several processes belong to one operation or
episode.

    trace_context   the ids, as W3C Trace Context has them, and which one is current
    log_format      log lines as text or as JSON objects with the current trace id
    spans           work with a beginning and an end
    otlp_export     spans to a collector of OpenTelemetry; the only file that imports it

Invariants:
- The trace id of an operation is computed from its id, and that of an episode from its record: nothing is looked up.
- Without an endpoint a span costs one comparison, and OpenTelemetry is not imported.
- No prompt, no output of a model and no argument or result of a tool is in a span.
"""
