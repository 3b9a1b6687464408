"""Messages of the feed: rows as they change, and metrics."""

from __future__ import annotations

import msgspec

from agentrl.protocol.message_base import Message


class FeedRow(Message, tag="feed_row", frozen=True):
    """The whole present row; nil means that the row was removed."""

    epoch: str
    seq: int
    key: str
    value: msgspec.Raw = msgspec.Raw(b"\xc0")


class FeedBeat(Message, tag="feed_beat", frozen=True):
    """Sent every second, also if nothing changes. A subscriber that sees a gap takes a new snapshot."""

    epoch: str
    seq: int
    now_ct: float
    at: float


class MetricBatch(Message, tag="metric_batch", frozen=True):
    """Published on the metrics socket: the newest values of one unit."""

    unit: str
    at: float
    values: dict[str, float]


Feed = FeedRow | FeedBeat | MetricBatch
