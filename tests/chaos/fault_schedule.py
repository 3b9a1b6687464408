"""The schedule of faults, which depends on seed and duration only.

Invariants: the clock is the number of committed steps, so a slow machine gets the same faults as a fast one, but fewer;
the required faults come first, in an order that the seed decides.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from tests.chaos.faults import Fault, all_faults, required

AT_ONCE = 2
"""The number of faults at the same step, so that some hit a run that has not recovered yet."""
STEPS_APART = 2
FAULTS_A_MINUTE = 5.0
TAIL = 60
"""Additional steps after the last fault, because each missed point costs steps. Unused ones are cancelled at the
end."""


class ScheduledFault(NamedTuple):
    at_step: int
    name: str
    fault: Fault


def ranks_of(seed: int) -> int:
    """The trainer is a gang of two, or with an odd seed one process."""
    return 1 if seed % 2 else 2


def schedule(seed: int, minutes: float, only: str = "") -> list[ScheduledFault]:
    """Only faults whose name contains `only`."""
    chance = random.Random(f"storm {seed}")
    faults, names = all_faults(ranks_of(seed)), sorted(required(ranks_of(seed)))
    rest = max(0, round(minutes * FAULTS_A_MINUTE) - len(names))
    chance.shuffle(names)
    names += chance.choices(sorted(faults), k=rest)
    names = [name for name in names if only in name]
    return [ScheduledFault(1 + place // AT_ONCE * STEPS_APART, name, faults[name]) for place, name in enumerate(names)]


def steps_of(due: list[ScheduledFault]) -> int:
    return due[-1].at_step + TAIL
