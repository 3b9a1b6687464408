"""Knobs of training change between steps, with a preview of the effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.knobs import unit_knobs
from agentrl.errors import ConfigError
from agentrl.policies.freshness import Decay
from agentrl.protocol.specs import Role
from agentrl.steward.settings import StewardSettings
from agentrl.store.documents import Task
from agentrl.training import scientific_settings
from agentrl.training.trainer_knobs import Knobs
from agentrl.unit.unit import Unit, UnitParts
from agentrl.unit.unit_environment import UnitEnvironment
from tests.training.rollouts import configuration


@pytest.fixture
def unit(tmp_path: Path) -> Unit:
    return Unit(UnitParts(UnitEnvironment(unit="trainer-0", group="trainer", slot=0, incarnation=1, run_dir=tmp_path)))


def test_a_new_bound_holds_from_the_next_step(unit: Unit, tmp_path: Path, tiny: Path) -> None:
    knobs = Knobs(unit, configuration(tmp_path, tiny, bound=2))
    before = knobs.take()
    unit._knobs.offer("bound", 1)
    assert before.freshness.bound == 2
    assert knobs.take().freshness.bound == 1


def test_decay_masks_ratios_and_keeps_the_bound(unit: Unit, tmp_path: Path, tiny: Path) -> None:
    knobs = Knobs(unit, configuration(tmp_path, tiny, bound=3))
    assert knobs.take().loss.decay is None
    unit._knobs.offer("strategy", "decay")
    plan = knobs.take()
    assert plan.loss.decay is not None
    assert plan.freshness.oldest == 3
    numbers = {"bound": 3, "groups": 2, "publish_every": 1, "bounds": {}}
    assert plan.for_admission("") == numbers | {"hold": "", "trial": False}
    assert plan.for_admission("most fail", trial=True) == numbers | {"hold": "most fail", "trial": True}


def test_a_contradictory_value_is_refused_and_changes_nothing(
    unit: Unit, tmp_path: Path, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configuration(tmp_path, tiny, bound=2, strategy="decay", hard_bound=3)
    knobs = Knobs(unit, config)
    before = knobs.take()
    with pytest.raises(ConfigError, match="must be below 1"):
        unit._knobs.preview("decay_cap", 6.0)
    assert "between 0.4 and 1.9" in unit._knobs.preview("decay_cap", 3.0).sentence
    with pytest.raises(ConfigError, match="smaller than the bound"):
        unit._knobs.preview("bound", 4)
    assert unit._knobs.preview("hard_bound", 2).sentence == ""
    # Whoever sets it without asking first does not end the trainer.
    unit._knobs.offer("decay_cap", 6.0)
    assert knobs.take() == before
    assert "the plan stays as it was" in caplog.text
    unit._knobs.offer("decay_epsilon", 0.1)
    assert knobs.take().loss.decay == Decay(out_of_date_decay=0.5, epsilon=0.1, extra=0.1, cap=6.0)


def test_an_environment_keeps_its_own_bound_when_that_of_the_run_is_changed(
    unit: Unit, tmp_path: Path, tiny: Path
) -> None:
    config = configuration(tmp_path, tiny, bound=2)
    own = config.environments["shop"].model_copy(update={"bound": 7})
    knobs = Knobs(unit, config.model_copy(update={"environments": {"shop": own, "other": own}}))
    unit._knobs.offer("bound", 1)
    unit._knobs.offer("strategy", "wait")
    plan = knobs.take()
    assert plan.for_admission("")["bounds"] == {"shop": 7, "other": 7}
    assert plan.for_admission("")["bound"] == 1
    assert plan.freshness.of("shop").strategy == "wait"


def test_the_preview_of_a_step_size_shows_batches_and_admission(unit: Unit, tmp_path: Path, tiny: Path) -> None:
    knobs = Knobs(unit, configuration(tmp_path, tiny, bound=1))
    groups = unit._knobs.preview("groups", 6).sentence
    assert "6 groups of 2 (12 records, now 4)" in groups
    assert "up to 24 records may be sampled ahead of training (now 8)" in groups
    unit._knobs.offer("groups", 6)
    assert knobs.take().groups == 6
    assert (
        "up to 72 records may be sampled ahead of training (now 24)" in unit._knobs.preview("publish_every", 3).sentence
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("learning_rate", 0.01, "from 0.001 to 0.01"), ("clip_low", 0.1, "from 0.2 to 0.1"), ("keep_versions", 9, "to 9")],
)
def test_every_other_knob_previews_its_value_and_its_boundary(
    unit: Unit, tmp_path: Path, tiny: Path, name: str, value: float, expected: str
) -> None:
    Knobs(unit, configuration(tmp_path, tiny))
    sentence = unit._knobs.preview(name, value).sentence
    assert expected in sentence
    assert "with the next step" in sentence


def test_optimizer_steps_are_parts_of_whole_groups(unit: Unit, tmp_path: Path, tiny: Path) -> None:
    knobs = Knobs(unit, configuration(tmp_path, tiny, groups=4))
    assert knobs.take().optimizer_steps == 1
    assert "cut into 2 parts" in unit._knobs.preview("optimizer_steps", 2).sentence
    with pytest.raises(ConfigError, match="4 groups cannot be cut into 5 parts"):
        unit._knobs.preview("optimizer_steps", 5)
    unit._knobs.offer("optimizer_steps", 2)
    assert knobs.take().optimizer_steps == 2


def test_a_step_keeps_a_group_for_each_of_its_parts(
    unit: Unit, tmp_path: Path, tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    knobs = Knobs(unit, configuration(tmp_path, tiny, groups=4, optimizer_steps=3))
    before = knobs.take()
    assert "3 groups" in unit._knobs.preview("groups", 3).sentence
    with pytest.raises(ConfigError, match="2 groups cannot be cut into 3 parts"):
        unit._knobs.preview("groups", 2)
    # Both previewed before either was set.
    unit._knobs.offer("groups", 2)
    assert knobs.take() == before
    assert "the plan stays as it was" in caplog.text
    unit._knobs.offer("optimizer_steps", 2)
    after = knobs.take()
    assert (after.groups, after.optimizer_steps) == (2, 2)


def test_settings_of_a_step_have_all_scientific_knobs_but_those_of_the_sampler(
    unit: Unit, tmp_path: Path, tiny: Path
) -> None:
    config = configuration(tmp_path, tiny, strategy="decay")
    admitted = StewardSettings(environments={}, n=2, max_tokens=64)
    kept = {"sampling": admitted.sampling(), "closing": admitted.group_rule.kept()}
    task = Task(id="shop/train/0/000001", n=2, **kept)
    knobs = unit_knobs(config, Role.TRAINER) | unit_knobs(config, Role.STEWARD)
    scientific = {knob.name for knob in knobs.values() if knob.scientific}
    settings = scientific_settings.settings_of(Knobs(unit, config).take(), [task])
    assert settings.keys() == scientific
    for name, value in settings.items():
        knobs[name].check(value)  # A rollback sets it.
    assert scientific_settings.change(settings, settings | {"balance": True}) == "balance false -> true"
    of_sampler = {knob.name for knob in unit_knobs(config, Role.SAMPLER).values() if knob.scientific}
    assert of_sampler == {"episode_s", "episode_timeout_means", "max_turns"}
