"""What alarms need to know of a Step beyond the Step itself: how its numbers stand against those of Steps before.

Invariants: everything follows from the metrics of Steps, the oldest first, so whoever reads them again (another
trainer, a test with a recorded series) finds the same; a number for which there is too little evidence is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median

LOOK_BACK = 50
"""Steps that a Step is compared with."""
EDGE = 5
"""Steps at either end of a stretch whose mean stands for it: single Steps waver."""
LATELY = 10
LEAST = 10
"""Of fewer Steps before it nothing is said of a Step."""

Metrics = Mapping[str, float]


def against(before: Sequence[Metrics], step: Metrics) -> dict[str, float]:
    """`before`: the Steps before it, the oldest first."""
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
    return {name: value for name, value in found.items() if value is not None}


_READ = (
    *("gradient_norm", "truncation_share", "tool_calls_per_record", "tokens_per_record"),
    *("evaluation", "entropy", "reward_mean"),
)


def _edges(values: Sequence[float]) -> tuple[float, float]:
    """What the stretch began and ended with."""
    return (fmean(values[:EDGE]), fmean(values[-EDGE:])) if values else (0.0, 0.0)


def _over_median(values: Sequence[float]) -> float | None:
    if len(values) <= LEAST:
        return None
    usual = median(values[:-1])
    return values[-1] / usual if usual > 0 else None


def _without_signal(steps: Sequence[Metrics]) -> dict[str, float | None]:
    """The groups of these Steps that taught nothing."""
    if len(steps) < LATELY or not all("groups_without_signal" in one for one in steps):
        return {}
    without = sum(float(one["groups_without_signal"]) for one in steps)
    groups = without + sum(float(one["groups"]) for one in steps)
    share = without / groups if groups else None
    return {"zero_variance_lately": share, "groups_without_signal_lately": without, "groups_lately": groups}


def _rise(values: Sequence[float]) -> float | None:
    """The last ten against those before."""
    earlier = values[:-LATELY]
    return fmean(values[-LATELY:]) - fmean(earlier) if len(earlier) >= LATELY else None


def _worst_rise(steps: Sequence[Metrics]) -> float | None:
    """Of the tool whose share of failures has risen most."""
    shares = [name for name in steps[-1] if name.startswith("tools/") and name.endswith("/infrastructure_share")]
    rises = [_rise([float(one[name]) for one in steps if name in one]) for name in shares]
    return max((rise for rise in rises if rise is not None), default=None)


def _kept(values: Sequence[float], *, over: int, least: float) -> float | None:
    """The last few as a share of those before, where those were worth speaking of."""
    earlier = values[:-over]
    if len(earlier) < LEAST or fmean(earlier) < least:
        return None
    return fmean(values[-over:]) / fmean(earlier)


def _jump(values: Sequence[float]) -> float | None:
    """The last three Steps against the usual of the twenty before; the one of the three that is nearest to it, so that
    a single odd batch is no jump."""
    earlier, last = values[-23:-3], values[-3:]
    if len(earlier) < LEAST:
        return None
    usual = median(earlier)
    if usual <= 0:
        return None
    return min((value / usual for value in last), key=lambda share: abs(share - 1))


def _fall(values: Sequence[float]) -> float | None:
    return max(values) - values[-1] if values else None
