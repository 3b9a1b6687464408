"""What may be changed while training goes on: between Steps, and with a word on what it would lose."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.training.knobs import Knobs
from agentrl.unit import Unit
from agentrl.unit.environment import Environment
from tests.training.rollouts import configuration


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    return Unit(Environment(unit="trainer-0", group="trainer", slot=0, incarnation=1, run_dir=tmp_path))


def test_a_new_bound_says_what_it_voids_and_holds_from_the_next_step(unit: Unit, tmp_path: Path, tiny: Path) -> None:
    knobs = Knobs(unit, configuration(tmp_path, tiny, bound=2), lambda: [0, 1, 2, 2, 3])
    preview = unit._knobs.preview("bound", 1)
    assert (preview.loses, preview.exact_undo) == (2, False)
    assert "voids 2 ready records" in preview.sentence
    assert unit._knobs.preview("bound", 5).loses == 0
    before = knobs.take()
    unit._knobs.offer("bound", 1)
    assert before.freshness.bound == 2
    assert knobs.take().freshness.bound == 1


def test_decay_masks_ratios_and_keeps_the_bound(unit: Unit, tmp_path: Path, tiny: Path) -> None:
    knobs = Knobs(unit, configuration(tmp_path, tiny, bound=3), tuple)
    assert knobs.take().loss.decay is None
    unit._knobs.offer("strategy", "decay")
    plan = knobs.take()
    assert plan.loss.decay is not None
    assert plan.freshness.oldest == 3
    assert plan.told("") == {"bound": 3, "groups": 2, "publish_every": 1, "hold": ""}
