"""Compares the metrics of a step with those of the steps before it, for alarms.

Invariants: everything follows from the metrics of steps, oldest first, so another trainer or a recorded series gives
the same numbers; a number without enough evidence is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

from agentrl.policies import learning_collapse

LOOK_BACK = 50
"""Steps that a step is compared with."""
EDGE = 5
"""The mean of this many steps represents either end of a series, because single steps vary."""
LATELY = 10
LEAST = 10
"""Fewer steps before a step are too little evidence."""

Metrics = Mapping[str, float]


def against(before: Sequence[Metrics], step: Metrics) -> dict[str, float]:
    """`before`: the steps before it, oldest first."""
    steps = [*before[-LOOK_BACK:], step]
    series = {name: [float(one[name]) for one in steps if name in one] for name in _READ}
    found: dict[str, float | None] = {
        "gradient_over_median": _over_median(series["gradient_norm"]),
        **_without_signal(steps[-LATELY:]),
        "truncation_rise": _rise(series["truncation_share"]),
        "tool_calls_kept": _kept(series["tool_calls_per_record"], over=EDGE, least=0.5),
        "length_jump": _jump(series["tokens_per_record"]),
        "evaluation_fall": _fall(series["evaluation"]),
        "tool_failures_rise": _worst_rise(steps),
    }
    if len(steps) > LOOK_BACK:
        first, last = _edges(series["entropy"])
        found["entropy_kept"] = last / first if first > 0.01 else None
    if len(series["reward_mean"]) > LEAST:
        first, last = _edges(series["reward_mean"])
        found["reward_gain"] = last - first
    lately = learning_collapse.reward_lately(series["reward_mean"], len(steps))
    if lately is not None:
        found |= {"reward_lately": lately.mean, "reward_lately_margin": lately.margin}
    return {name: value for name, value in found.items() if value is not None}


_READ = (
    *("gradient_norm", "truncation_share", "tool_calls_per_record", "tokens_per_record"),
    *("evaluation", "entropy", "reward_mean"),
)


def _edges(values: Sequence[float]) -> tuple[float, float]:
    """The mean of the first and of the last values."""
    return (fmean(values[:EDGE]), fmean(values[-EDGE:])) if values else (0.0, 0.0)


def _over_median(values: Sequence[float]) -> float | None:
    if len(values) <= LEAST:
        return None
    usual = median(values[:-1])
    return values[-1] / usual if usual > 0 else None


def _without_signal(steps: Sequence[Metrics]) -> dict[str, float | None]:
    """The groups of these steps that had no signal."""
    if len(steps) < LATELY or not all("groups_without_signal" in step for step in steps):
        return {}
    without = sum(float(step["groups_without_signal"]) for step in steps)
    groups = without + sum(float(step["groups"]) for step in steps)
    share = without / groups if groups else None
    return {"zero_variance_lately": share, "groups_without_signal_lately": without, "groups_lately": groups}


def _rise(values: Sequence[float]) -> float | None:
    """The mean of the last ten minus the mean of those before."""
    earlier = values[:-LATELY]
    return fmean(values[-LATELY:]) - fmean(earlier) if len(earlier) >= LATELY else None


def _worst_rise(steps: Sequence[Metrics]) -> float | None:
    """The largest rise of the share of failures of any tool."""
    shares = [name for name in steps[-1] if name.startswith("tools/") and name.endswith("/infrastructure_share")]
    rises = [_rise([float(step[name]) for step in steps if name in step]) for name in shares]
    return max((rise for rise in rises if rise is not None), default=None)


def _kept(values: Sequence[float], *, over: int, least: float) -> float | None:
    """The last values as a share of the values before, if the values before were at least `least`."""
    earlier = values[:-over]
    if len(earlier) < LEAST or fmean(earlier) < least:
        return None
    return fmean(values[-over:]) / fmean(earlier)


def _jump(values: Sequence[float]) -> float | None:
    """The last three steps relative to the median of the twenty before. Takes the nearest of the three, so that a
    single unusual batch is not a jump."""
    earlier, last = values[-23:-3], values[-3:]
    if len(earlier) < LEAST:
        return None
    usual = median(earlier)
    if usual <= 0:
        return None
    return min((value / usual for value in last), key=lambda share: abs(share - 1))


def _fall(values: Sequence[float]) -> float | None:
    return max(values) - values[-1] if values else None
