"""Means over seeds with their 95 % intervals, and the plot of curves as SVG. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# Quantiles of Student's distribution for two-sided 95 %, by degrees of freedom.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
COLOURS = ("#2b6cb0", "#c05621", "#2f855a", "#6b46c1", "#b83280", "#4a5568", "#975a16", "#2c7a7b")
_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 720, 360, 56, 16, 190, 44


class Mean(NamedTuple):
    value: float
    margin: float
    """Half of the 95 % interval; infinite for one seed."""

    def __str__(self) -> str:
        return f"{self.value:.3f}" + (f" ± {self.margin:.3f}" if math.isfinite(self.margin) else "")


def mean(values: Sequence[float]) -> Mean:
    middle = math.fsum(values) / len(values)
    if len(values) < 2:
        return Mean(middle, math.inf)
    variance = math.fsum((one - middle) ** 2 for one in values) / (len(values) - 1)
    student = _STUDENT[min(len(values) - 2, len(_STUDENT) - 1)]
    return Mean(middle, student * math.sqrt(variance / len(values)))


Curve = Sequence[tuple[float, Mean]]
"""Positions on the axis, each with the mean there."""


def plot(curves: Mapping[str, Curve], *, along: str, up: str) -> str:
    """Curves with their intervals, from 0 to 1 upwards."""
    most = max(at for curve in curves.values() for at, _ in curve) or 1.0

    def x(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / most

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - min(1.0, max(0.0, value)))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        f'font-size="12" fill="#444"><rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>'
    ]
    for tenth in range(0, 11, 2):
        at = y(tenth / 10)
        parts.append(f'<path d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{tenth / 10:g}</text>')
    for fourth in range(5):
        at = x(most * fourth / 4)
        parts.append(
            f'<text x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{most * fourth / 4:,.0f}</text>'
        )
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">{along}</text>')
    parts.append(f'<text x="14" y="{_HEIGHT / 2:.0f}" transform="rotate(-90 14 {_HEIGHT / 2:.0f})">{up}</text>')
    for place, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        parts.append(_band(curve, x, y, colour))
        line = " ".join(f"{x(at):.1f},{y(one.value):.1f}" for at, one in curve)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        at = _TOP + 14 + 18 * place
        parts.append(f'<path d="M{_WIDTH - _RIGHT + 12} {at - 4}h18" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{_WIDTH - _RIGHT + 36}" y="{at}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _band(curve: Curve, x: Callable[[float], float], y: Callable[[float], float], colour: str) -> str:
    known = [(at, one) for at, one in curve if math.isfinite(one.margin)]
    if not known:
        return ""
    above = [f"{x(at):.1f},{y(one.value + one.margin):.1f}" for at, one in known]
    below = [f"{x(at):.1f},{y(one.value - one.margin):.1f}" for at, one in reversed(known)]
    return f'<polygon points="{" ".join([*above, *below])}" fill="{colour}" opacity="0.15"/>'
