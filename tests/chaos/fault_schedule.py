"""Which blow comes when: a matter of seed and length alone.

Invariants: the clock is the number of committed steps, so a slow machine gets the same storm as a fast one, only less
of it; whatever is required comes first, in an order that the seed decides.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.chaos.faults import ALL, REQUIRED, Blow

AT_ONCE = 2
"""Blows that come one after the other without a step between, so that some fall upon who is not back yet."""
STEPS_APART = 2
BLOWS_A_MINUTE = 5.0
TAIL = 60
"""Steps after the last blows: points that were missed cost some. What is left over in the end is not taken."""


class Due(NamedTuple):
    at_step: int
    name: str
    blow: Blow


def schedule(seed: int, minutes: float, only: str = "") -> list[Due]:
    """`only` leaves out all whose name does not have it."""
    chance = random.Random(f"storm {seed}")
    names, rest = sorted(REQUIRED), max(0, round(minutes * BLOWS_A_MINUTE) - len(REQUIRED))
    chance.shuffle(names)
    names += chance.choices(sorted(ALL), k=rest)
    names = [name for name in names if only in name]
    return [Due(1 + place // AT_ONCE * STEPS_APART, name, ALL[name]) for place, name in enumerate(names)]


def steps_of(due: list[Due]) -> int:
    return due[-1].at_step + TAIL
