"""The rules about the processes of the data plane: steps that do not come, weights that do not arrive, tools that fail.

Invariants: as in `rules`; what is slow by nature is judged by its own pace before it is judged by a limit.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from statistics import median

from agentrl.control.alerts.learning_rules import evidence, is_outside, trainers
from agentrl.control.alerts.lifecycle import Finding, World
from agentrl.protocol.rows import UnitRow, UnitState
from agentrl.telemetry.services import (
    BREAKER_OPEN,
    CANARY_LARGEST,
    CANARY_OVER_LIMIT,
    HELD_OUT_TRAINED,
    REJECTED,
    STEP,
    TOOL_FAILURES,
    WARMUP_UNUSED,
    named_in,
)

STEP_WITHIN_S = 900.0
STEPS_LATE = 10
"""So many times the usual distance between two Steps is late, where that is more."""
ENGINE_LAG = 3
TOOL_SHARE, TOOL_CLEAR = 0.2, 0.1
"""Share of a tool's recent calls that fail for infrastructure: where an alert begins and ends."""


def no_step(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in trainers(world).items():
        times, values = world.metrics.history(name, STEP.name)
        if not times or unit.paused:
            continue
        moved = [at for (_, before), (at, value) in pairwise(zip(times, values, strict=True)) if value != before]
        stood_s = now - (moved[-1] if moved else times[0])
        usual_s = median(later - sooner for sooner, later in pairwise(moved)) if len(moved) > 2 else 0.0
        if stood_s > max(STEP_WITHIN_S, STEPS_LATE * usual_s):
            chain = [chain.sentence for chain in world.chains if any(link.who == name for link in chain.links)]
            pace = f"usually one in {usual_s:.0f} s" if usual_s else f"step {values[-1]:.0f} was the last"
            yield Finding(
                name, f"{name} has made no step for {stood_s / 60:.0f} min.", (pace, *chain[:3]), "agentrl why"
            )


def engine_lags(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    newest = max((unit.weights or 0 for unit in trainers(world).values()), default=0)
    for name, unit in _at_work(world, "engine"):
        if unit.weights is None or newest - unit.weights < ENGINE_LAG:
            continue
        yield Finding(
            name,
            f"{name} serves version {unit.weights}, and version {newest} is published.",
            (f"it says: {unit.status or '(nothing)'}", f"alert from {ENGINE_LAG} versions on"),
            f"agentrl restart {name}",
        )


def version_rejected(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, _ in _at_work(world, "steward"):
        version = world.metrics.values(name).get(REJECTED.name, 0.0)
        if version > 0:
            engines = tuple(f"{engine}: {unit.status}" for engine, unit in _at_work(world, "engine") if unit.status)
            yield Finding(
                f"v{version:.0f}",
                f"No engine takes version {version:.0f}; the one before it serves on.",
                engines or ("no engine is there",),
                "agentrl logs engine-0",
            )


def canary_differs(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in _at_work(world, "engine"):
        values = world.metrics.values(name)
        if is_outside(CANARY_OVER_LIMIT, values, standing=name in alerting):
            yield Finding(
                name,
                f"{name} computes the canary of version {unit.weights} otherwise than the trainer, and serves it: at "
                f"one token by {CANARY_LARGEST.in_words(values.get(CANARY_LARGEST.name, math.nan))}.",
                (evidence(CANARY_OVER_LIMIT, values), "The mean was within the limit, so it was not refused."),
                "agentrl versions list",
            )


def breaker_open(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, unit in _at_work(world, "toolbox"):
        values = world.metrics.values(name)
        for server, value in named_in(values, BREAKER_OPEN):
            if value > 0:
                failing = [
                    f"{tool}: {share:.0%} of its recent calls failed for infrastructure"
                    for tool, share in named_in(values, TOOL_FAILURES)
                    if tool.startswith(f"{server}.")
                ]
                yield Finding(
                    f"{name}/{server}",
                    f"{name} leaves the tool server {server} alone: it failed too often.",
                    (*failing, unit.status, "What needs it is not admitted meanwhile. It is tried again by itself."),
                    f"agentrl logs {name}",
                )


def tool_fails(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, _ in _at_work(world, "toolbox"):
        for tool, share in named_in(world.metrics.values(name), TOOL_FAILURES):
            subject = f"{name}/{tool}"
            if share > (TOOL_CLEAR if subject in alerting else TOOL_SHARE):
                yield Finding(
                    subject,
                    f"{share:.0%} of the recent calls of {tool} fail for infrastructure.",
                    (f"alert above {TOOL_SHARE:.0%}, ends at {TOOL_CLEAR:.0%}; a breaker opens above 50 %",),
                    f"agentrl logs {name}",
                )


def held_out_trained(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name, _ in _at_work(world, "steward"):
        for place, count in named_in(world.metrics.values(name), HELD_OUT_TRAINED):
            environment, _, example = place.partition("/")
            if count > 0:
                yield Finding(
                    environment,
                    f"{count:.0f} held-out prompts of {environment} are trained on as well: its evaluation flatters.",
                    (example, "It is so until the dataset is another."),
                    f"agentrl logs {name} --grep 'is held out' --lines 0",
                )


def warmup_unused(world: World, alerting: Collection[str], now: float) -> Iterator[Finding]:
    for name in trainers(world):
        if world.metrics.values(name).get(WARMUP_UNUSED.name, 0.0) > 0:
            yield Finding(
                name,
                "The warm-up of the run file is not done: the run began without it, and goes on from its checkpoint.",
                ("A run of another name, or one that was wiped, begins with it.", "Or leave out `training.warmup`."),
                "agentrl checkpoints list",
            )


def _at_work(world: World, role: str) -> Iterable[tuple[str, UnitRow]]:
    return [(n, u) for n, u in world.units.items() if u.role == role and u.state is UnitState.READY and not u.paused]
