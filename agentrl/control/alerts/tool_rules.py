"""Alert rules about tools and tool servers, the parts of a toolbox."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.control.alerts.rule_types import Measured, Threshold
from agentrl.control.alerts.subjects import Reported, parts, reported
from agentrl.formatting.sentences import ended
from agentrl.telemetry.data_plane_metrics import BREAKER_OPEN, TOOL_FAILURES


def _why_left_alone(found: Measured[Reported]) -> Iterator[str]:
    unit, server = found.snapshot.units[found.row.unit], found.row.part
    # The breaker refuses later calls, so recent ones do not show the cause.
    yield from [part.status for part in unit.parts if part.name == server and part.status] or [unit.status]
    for tool in reported("toolbox", TOOL_FAILURES)(found.snapshot).values():
        if tool.unit == found.row.unit and tool.part.startswith(f"{server}.") and tool.value > 0:
            yield f"{tool.part}: {tool.value:.0%} of its recent calls failed for infrastructure"
    yield "Tasks that need it are not admitted. The toolbox probes it and continues when it works."


TOOL_RULES = (
    Threshold(
        "tool-server-left-alone",
        subjects=reported("toolbox", BREAKER_OPEN),
        value=lambda reported: reported.value,
        sentence="{unit} makes no calls to the tool server {part}: too many of them failed.",
        evidence=_why_left_alone,
        cure="agentrl tools errors --filter server={part}",
        hold_s=5.0,
        explained_by=lambda found: (found.name,),
    ),
    Threshold(
        "tool-fails",
        subjects=reported("toolbox", TOOL_FAILURES),
        value=lambda reported: reported.value,
        above=0.2,
        clear=0.1,
        in_words="{:.0%}".format,
        sentence="{value} of the recent calls of {part} failed for infrastructure.",
        limits="alert above {threshold}, ends at {clear}; a circuit breaker opens above 50 %",
        cure="agentrl logs {unit}",
        hold_s=10.0,
        explained_by=lambda found: (f"{found.row.unit}/{found.row.part.partition('.')[0]}",),
    ),
    Threshold(
        "tool-memory",
        subjects=parts("toolbox"),
        value=lambda part: part.memory_share,
        above=0.9,
        clear=0.8,
        reached=True,
        in_words="{:.0%}".format,
        sentence="A sandbox of the tool server {part} is near its memory limit: {value}.",
        evidence=lambda found: (f"{found.row.fullest} is the fullest",),
        limits="alert from {threshold} of tools.{part}.sandbox.memory, ends below {clear}",
        cure="agentrl tools sandboxes --server {part}",
        hold_s=4.0,
    ),
    Threshold(
        "tool-restarts",
        subjects=parts("toolbox"),
        value=lambda part: part.died_lately,
        above=3,
        clear=2,
        reached=True,
        sentence="Processes of the tool server {part} keep dying: {value} in five minutes.",
        evidence=lambda found: (
            f"the last one: {found.row.last_death}",
            f"{found.row.died} since the start of its toolbox",
        ),
        cure="agentrl tools logs {part}",
    ),
    Threshold(
        "tool-unhealthy",
        subjects=parts("toolbox"),
        value=lambda part: bool(part.unhealthy),
        sentence=lambda found: f"The tool server {found.row.name} runs and does not work: {ended(found.row.unhealthy)}",
        evidence=lambda found: (found.row.status,),
        cure="agentrl tools restart {part}",
        explained_by=lambda found: (found.name,),
    ),
)
