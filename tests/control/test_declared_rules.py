"""Rules that a run file declares: they fire with evidence and a command, and end with their number."""

from __future__ import annotations

import math

from agentrl.config.alerts import Rule
from agentrl.control.alerts.alert_states import AlertEngine
from agentrl.control.alerts.rule_types import declared_rule, metrics_read
from agentrl.control.state.unit_metrics import MOST_METRICS, MetricStore
from agentrl.protocol.rows import AlertRow, Severity
from tests.control.test_rules import AT, GIB, snapshot, unit


def own(**more: object) -> Rule:
    fields: dict[str, object] = {"name": "tool-errors", "metric": "error_share", "of": "web", **more}
    return Rule.model_validate(fields)


class Judged:
    """A rule of the run file, on the numbers of two units."""

    def __init__(self, rule: Rule) -> None:
        self.metrics = MetricStore(metrics_read([rule]))
        self.engine = AlertEngine([declared_rule(rule)])
        self.now = 0.0

    def after(self, seconds: float, **values: float) -> list[AlertRow]:
        self.now += seconds
        for slot, value in values.items():
            self.metrics.update(f"web-{slot[-1]}", 1, {"error_share": value}, self.now)
        look = snapshot(unit("web-0", rss_bytes=5 * GIB), unit("web-1"), metrics=self.metrics)
        self.engine.evaluate(look, self.now, AT + self.now)
        return self.engine.rows()


def test_declared_rule_pages_with_evidence_and_a_command() -> None:
    rule = own(
        above=0.5,
        clear=0.2,
        for_s=20.0,
        severity="page",
        sentence="The tools of {subject} fail: {value} {unknown}",
        suggest="agentrl restart {subject}",
    )
    judged = Judged(rule)
    assert judged.after(1.0, w0=0.6, w1=0.1) == []
    judged.after(10.0, w0=0.7, w1=0.1)
    (row,) = judged.after(10.0, w0=0.8, w1=0.1)
    assert (row.id, row.severity) == ("tool-errors:web-0", Severity.PAGE)
    assert row.sentence == "The tools of web-0 fail: 0.8 {unknown}"
    assert row.suggest == "agentrl restart web-0"
    assert row.evidence == (
        "error_share = 0.8 (alert above 0.5 for 20 s, ends at 0.2)",
        "in the last 20 s: least 0.6, mean 0.7, most 0.8",
    )
    assert len(judged.after(30.0, w0=0.3, w1=0.1)) == 1, "not clear yet"
    judged.after(1.0, w0=0.1, w1=0.1)
    assert judged.after(30.0, w0=0.1, w1=0.1) == []


def test_declared_rule_below_a_threshold_of_a_single_unit() -> None:
    judged = Judged(own(below=0.5, of="web-1"))
    assert [row.subject for row in judged.after(1.0, w0=0.1, w1=0.1)] == ["web-1"]
    assert judged.engine.rows()[0].sentence == "error_share of web-1 is 0.1, below 0.5."


def test_declared_rule_on_a_number_of_the_host_agent() -> None:
    judged = Judged(own(metric="rss_bytes", above=4.0 * GIB))
    assert [row.subject for row in judged.after(1.0)] == ["web-0"]


def test_stale_number_ends_the_alert() -> None:
    judged = Judged(own(above=0.5))
    assert len(judged.after(1.0, w0=0.9)) == 1
    judged.after(70.0)
    assert judged.after(20.0) == []


def test_numbers_are_bounded_and_finite() -> None:
    metrics = MetricStore(["loss"])
    metrics.update("web-0", 1, {"loss": math.nan, "grad": math.inf, "ok": 1.0}, 0.0)
    assert metrics.values("web-0") == {"ok": 1.0}
    metrics.update("web-0", 1, {f"m{n}": 1.0 for n in range(10_000)}, 1.0)
    assert len(metrics.values("web-0")) == MOST_METRICS
    for step in range(5000):
        metrics.update("web-1", 1, {"loss": float(step), "other": 1.0}, float(step))
    assert len(metrics.history("web-1", "loss")[0]) <= 675
    assert metrics.history("web-1", "loss")[1][-1] == 4999.0
    assert metrics.shown("web-1") == {"loss": 4999.0}
    metrics.update("web-1", 2, {"loss": 1.0}, 6000.0)
    metrics.update("web-1", 1, {"loss": 7.0}, 6001.0)
    assert metrics.values("web-1") == {"loss": 1.0}, "a late report of an earlier incarnation"
    metrics.name(["other"])
    assert metrics.history("web-1", "loss") == ([], [])
    metrics.forget("web-1")
    assert metrics.shown("web-1") == {}
