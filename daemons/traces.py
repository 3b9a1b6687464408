"""Sends the spans of a unit to the collector that the run file names."""

from __future__ import annotations

import atexit

from agentrl.config.run import RunConfig
from agentrl.config.tracing import headers_of
from agentrl.unit import Unit


def export(config: RunConfig, unit: Unit) -> None:
    """Exports until the process ends. Without an endpoint nothing is imported."""
    if config.tracing.endpoint:
        from agentrl.tracing import otlp_export

        resource = {"service.instance.id": f"{unit.name}.{unit.incarnation}", "agentrl.run": config.name}
        stop = otlp_export.start(config.tracing.endpoint, headers_of(config.tracing), unit.group, resource)
        atexit.register(stop)
