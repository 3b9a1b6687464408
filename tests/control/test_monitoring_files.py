"""The dashboard and the alert rules of assets/monitoring fit what a scrape really shows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from typer.main import get_command

from agentrl.cli.app import app
from agentrl.control.exported_metrics import DECLARED, RunCollector
from agentrl.protocol.control_commands import StatusReport
from agentrl.protocol.rows import (
    AlertRow,
    AlertState,
    BottleneckRow,
    GroupRow,
    HostRow,
    RunRow,
    Severity,
    UnitRow,
    UnitState,
)

FOLDER = Path(__file__).parents[2] / "assets" / "monitoring"
RULES = FOLDER / "alerts.yml"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
MINUTES = 120
HEALTHY = StatusReport(
    run=RunRow("shop", "u", "running"),
    groups=(GroupRow("trainer", "trainer", 1), GroupRow("engine", "engine", 1)),
    units=(
        UnitRow("trainer-0", "trainer", "trainer", UnitState.READY, weights=3),
        UnitRow("engine-0", "engine", "engine", UnitState.READY, weights=3),
    ),
    hosts=(HostRow("a", "up", cpu_percent=40.0, memory_used_bytes=1 << 30, disk_free_bytes=1 << 40),),
    alerts=(AlertRow("unit-hung:x", "unit-hung", "x", Severity.WARNING, AlertState.FIRING, "x hangs", 1.0),),
    pulse=BottleneckRow(sentence="", busy={"engine": 0.9}),
)
NORMAL = {name: float(metric.normal[1]) for name, metric in DECLARED.items() if metric.normal}
NORMAL = {name: min(value, 1.0) for name, value in NORMAL.items()} | {"step": 7.0}
OF_TOOL = {"breaker_open/web": 0.0, "tool_failures/web.get": 0.1, "tool_p95_s/web.get": 0.1}
PAGE = AlertRow("host-cannot-write:a", "host-cannot-write", "a", Severity.PAGE, AlertState.FIRING, "a", 1.0)
Series = dict[str, float]


def scrape(report: StatusReport, **metrics: float) -> Series:
    """Every series with its value, as Prometheus would store it."""
    registry = CollectorRegistry()
    every = {name: 0.0 for name in DECLARED} | NORMAL | OF_TOOL
    named = {name.replace("__", "/").replace("_dot_", "."): value for name, value in metrics.items()}
    registry.register(RunCollector(report, {"trainer-0": every | named}))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    shown = {_series(sample.name, sample.labels): sample.value for family in families for sample in family.samples}
    return shown | {'up{job="agentrl",instance="h:9464"}': 1.0}


def _series(name: str, labels: dict[str, str]) -> str:
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in sorted(labels.items()))}}}"


def _with(**changed: Any) -> StatusReport:
    return msgspec.structs.replace(HEALTHY, **changed)


def _sick(state: UnitState) -> StatusReport:
    return _with(units=(*HEALTHY.units, UnitRow("web-0", "web", "sidecar", state)))


SICK: dict[str, Series] = {
    "AgentrlUnreachable": {'up{job="agentrl",instance="h:9464"}': 0.0},
    "AgentrlAlert": scrape(_with(alerts=(PAGE,))),
    "AgentrlRunDegraded": scrape(_with(run=RunRow("shop", "u", "degraded"))),
    "AgentrlUnitsDown": scrape(_sick(UnitState.FATAL)),
    "AgentrlUnitsPending": scrape(_sick(UnitState.PENDING)),
    "AgentrlNoSteps": scrape(HEALTHY, step=8.0),
    "AgentrlHostDown": scrape(_with(hosts=(*HEALTHY.hosts, HostRow("b", "silent", disk_free_bytes=1 << 40)))),
    "AgentrlDiskFills": scrape(_with(hosts=(HostRow("a", "up", disk_free_bytes=1 << 30),))),
    "AgentrlMismatch": scrape(HEALTHY, mismatch_over_limit=3.0),
    "AgentrlRewardCollapse": scrape(HEALTHY, collapse=2.0),
    "AgentrlVersionRejected": scrape(HEALTHY, rejected_version=9.0),
    "AgentrlToolServerDown": scrape(HEALTHY, breaker_open__web=1.0),
    "AgentrlToolFails": scrape(HEALTHY, tool_failures__web_dot_get=0.5),
    "AgentrlCoordinatorSlow": scrape(HEALTHY, loop_lag_ms=4000.0),
}
"""For each rule what a scrape shows when it should fire."""


def promtool(*arguments: str) -> str:
    tool = shutil.which("promtool")
    assert tool, "promtool is missing; .ci/packages installs it (Debian: prometheus)"
    done = subprocess.run([tool, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expressions() -> Iterator[str]:
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        yield rule["expr"]
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"].replace("$run", "shop") for target in panel.get("targets", ()))
    yield from (note["expr"].replace("$run", "shop") for note in DASHBOARD["annotations"]["list"])


def test_every_metric_and_label_of_an_expression_is_in_a_scrape() -> None:
    labels: dict[str, set[str]] = {}
    for series in scrape(HEALTHY):
        name, _, of = series.partition("{")
        labels.setdefault(name, set()).update(re.findall(r"(\w+)=", of))
    used = [pair for each in expressions() for pair in re.findall(r"\b(agentrl_\w+|up)\b(?:\{(.*?)\})?", each)]
    assert len(used) > 50
    for name, selector in used:
        assert name in labels, f"no scrape has {name}"
        assert {*re.findall(r"(\w+)\s*(?:=|!=|=~|!~)\s*\"", selector)} <= labels[name], (name, selector)
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            shown, (first, *_) = (
                re.findall(r"{{(\w+)}}", target["legendFormat"]),
                re.findall(r"agentrl_\w+", target["expr"]),
            )
            assert {*shown} <= labels[first], target


def test_prometheus_accepts_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": each} for number, each in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", str(file))


def test_each_rule_fires_for_its_cause_and_none_in_a_healthy_run(tmp_path: Path) -> None:
    assert SICK.keys() == {rule["alert"] for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
    tests = [_firing(scrape(HEALTHY), ())]
    tests += [_firing(shown, (alert,)) for alert, shown in SICK.items()]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


def _firing(shown: Series, alerts: tuple[str, ...]) -> dict[str, Any]:
    """A test of promtool: these alerts fire, and no others, after a long time with such scrapes."""
    stands = alerts == ("AgentrlNoSteps",)
    values = {name: "+1" if "_unit_step{" in name and not stands else "+0" for name in shown}
    expected = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    return {
        "interval": "1m",
        "name": ", ".join(alerts) or "healthy",
        "input_series": [
            {"series": name, "values": f"{value:g}{values[name]}x{MINUTES}"} for name, value in shown.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{MINUTES - 10}m",
                "exp_samples": expected,
            }
        ],
    }


def test_commands_that_alerts_suggest_exist() -> None:
    commands = re.findall(r"`agentrl ([a-z ]+?)(?: --[^`]*)?`", RULES.read_text())
    assert len(commands) > 10
    for words in commands:
        found: Any = get_command(app)
        for word in words.split():
            found = found.commands.get(word)
            assert found is not None, f"there is no command `agentrl {words}`"
