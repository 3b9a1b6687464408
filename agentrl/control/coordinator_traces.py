"""The log format and the spans of the coordinator: one span for each operation, from its acceptance to its end.

Invariants:
- A collector that is missing or misconfigured never stops the coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from agentrl.config.run import RunConfig
from agentrl.config.tracing import Tracing, headers_of
from agentrl.control.state.operations import Operation
from agentrl.errors import ConfigError
from agentrl.protocol.rows import OperationState
from agentrl.tracing import log_format, spans, trace_context

log = logging.getLogger(__name__)


class CoordinatorTraces:
    def __init__(self, run: str) -> None:
        self._run = run
        self._wanted = Tracing()
        self._stop: Callable[[], None] | None = None

    def configure(self, config: RunConfig) -> None:
        if config.logs:
            log_format.use(config.logs, "coordinator")
        if config.tracing == self._wanted:
            return
        self.close()
        self._wanted = config.tracing
        if not config.tracing.endpoint:
            return
        # Imported here: a coordinator without an endpoint starts without it.
        from agentrl.tracing import otlp_export

        try:
            resource = {"service.instance.id": "coordinator", "agentrl.run": self._run}
            headers = headers_of(config.tracing)
            self._stop = otlp_export.start(config.tracing.endpoint, headers, "coordinator", resource)
        except ConfigError as wrong:
            log.error("No spans are sent: %s", wrong)

    def operation_ended(self, operation: Operation) -> None:
        spans.record(
            f"operation {operation.command}",
            trace_context.of_operation(operation.id),
            began_s=operation.accepted_at,
            ended_s=operation.ended_at or operation.accepted_at,
            error="" if operation.state is OperationState.SUCCEEDED else str(operation.state),
            agentrl__operation=operation.id,
            agentrl__who=operation.who,
        )

    def close(self) -> None:
        """Returns when the waiting spans have been sent, or after some seconds."""
        if self._stop is not None:
            self._stop()
        self._stop = None
