"""The coordinator's own numbers, published like those of any unit.

Invariant: measuring costs a few comparisons per turn of the loop and one message a second.
"""

from __future__ import annotations

from collections.abc import Callable

from agentrl.control.context import Context
from agentrl.protocol.feed import MetricBatch
from agentrl.protocol.wire import encode
from agentrl.telemetry.metrics import FEED_ROWS, JOURNAL_COMMIT, LOOP_LAG, PEERS

NAME = "coordinator"
EVERY_S = 1.0


class OwnMetrics:
    """How the coordinator itself does."""

    def __init__(self, context: Context, publish: Callable[[bytes], None]) -> None:
        self._context = context
        self._publish = publish
        self._since = context.clock.now()
        self._worst_lag_s = 0.0
        self._seq = 0

    def turned(self, now: float, late_s: float) -> None:
        """Called in each turn of the loop with how late it came."""
        self._worst_lag_s = max(self._worst_lag_s, late_s)
        if now - self._since < EVERY_S:
            return
        self._context.show_pulse()
        feed = self._context.feed
        values = {
            LOOP_LAG.name: 1000 * self._worst_lag_s,
            FEED_ROWS.name: (feed.seq - self._seq) / (now - self._since),
            JOURNAL_COMMIT.name: 1000 * self._context.executor.slowest_commit_s(),
            PEERS.name: float(len(self._context.peers)),
        }
        self._since, self._seq, self._worst_lag_s = now, feed.seq, 0.0
        self._publish(encode(MetricBatch(NAME, now, values)))
