"""The rule about memory that grows: a leak is found with its slope, and no other curve raises it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator

import pytest

from agentrl.control.alerts.alert_states import AlertEngine
from agentrl.control.alerts.builtin_rules import default_rules
from agentrl.control.state.unit_metrics import POINTS, MemoryHistory, MemoryWatch, MetricStore
from agentrl.protocol.rows import AlertRow
from tests.control.test_rules import AT, GIB, MIB, noise, snapshot, unit


def hours(of: Callable[[float], float], count: float) -> Iterator[tuple[float, MetricStore]]:
    """One sample every ten seconds; yields every ten minutes."""
    metrics = MetricStore()
    for step in range(int(count * 360)):
        now = step * 10.0
        metrics.memory("web-0", 1, int(of(now / 3600)), now)
        if step % 60 == 0:
            yield now, metrics


def memory_alerts(of: Callable[[float], float], count: float) -> list[tuple[float, AlertRow]]:
    engine = AlertEngine(default_rules())
    found: list[tuple[float, AlertRow]] = []
    for now, metrics in hours(of, count):
        outcome = engine.evaluate(snapshot(unit(), metrics=metrics), now, AT + now)
        found += [(now / 3600, note.alert) for note in outcome.notify if note.what == "firing"]
    return found


def test_leak_is_found_with_its_slope() -> None:
    random.seed(1)
    ((hour, row),) = memory_alerts(lambda t: GIB + 200 * MIB * t + noise(), 8)
    assert hour < 2
    assert "per hour" in row.sentence
    assert any("64 GiB left" in line for line in row.evidence)
    assert row.suggest == "agentrl restart web-0"


def test_slow_leak_is_found_within_hours() -> None:
    random.seed(2)
    ((hour, _),) = memory_alerts(lambda t: GIB + 40 * MIB * t + random.uniform(-5, 5) * MIB, 12)
    assert hour < 6


@pytest.mark.parametrize(
    "healthy",
    [
        lambda t: 2 * GIB + noise(),
        lambda t: 4 * GIB * (1 - math.exp(-t * 3)) + GIB + noise(),
        lambda t: GIB + 150 * MIB * math.log1p(t * 20) + noise(),
        lambda t: GIB + 400 * MIB * (t * 3 % 1) + noise(),
        lambda t: GIB + (300 * MIB if t > 5 else 0) + noise(),
        lambda t: GIB + 100 * MIB * math.sin(t * 2) + noise(),
        lambda t: 8 * GIB - 200 * MIB * t + noise(),
    ],
    ids=["flat", "warm-up", "cache", "saw-tooth", "step", "tide", "shrinks"],
)
def test_other_memory_curves_raise_no_alert(healthy: Callable[[float], float]) -> None:
    random.seed(3)
    assert memory_alerts(healthy, 30) == []


def test_memory_window_is_configurable() -> None:
    metrics = MetricStore(watch=MemoryWatch(60.0))
    engine = AlertEngine(default_rules(memory_window_s=60.0))
    fired: list[float] = []
    for now in range(300):
        metrics.memory("web-0", 1, GIB + now * 4 * MIB, float(now))
        outcome = engine.evaluate(snapshot(unit(), metrics=metrics), float(now), AT + now)
        fired += [now for note in outcome.notify if note.what == "firing"]
    assert fired == [10 + 60 + 30], "after the warm-up, the window and half a window"
    metrics.watch_memory(MemoryWatch(61.0))
    assert metrics.memory_history("web-0") == MemoryHistory(), "another window starts without samples"


def test_new_incarnation_starts_without_samples() -> None:
    metrics = MetricStore()
    for step in range(120):
        metrics.memory("web-0", 1, GIB + step * 50 * MIB, step * 60.0)
    story = metrics.memory_history("web-0")
    assert story.slope_per_h == pytest.approx(50 * 60 * MIB, rel=0.01)
    assert len(story.points) == POINTS
    assert (story.points[0], story.points[-1], story.over_s) == (GIB, GIB + 119 * 50 * MIB, 119 * 60.0)
    assert list(story.points) == sorted(story.points)
    metrics.memory("web-0", 2, GIB, 7200.0)
    assert metrics.memory_trend("web-0") is None
    assert metrics.memory_history("web-0") == MemoryHistory(points=(GIB,))
