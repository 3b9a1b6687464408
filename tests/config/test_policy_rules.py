"""Every key of a run file reaches its policy rule."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.config import policy_rules
from agentrl.config.run import RunConfig
from agentrl.policies.freshness import Freshness
from agentrl.policies.loss_settings import CriticRule, PolicyLoss


def config_of(training: dict[str, Any], **environments: dict[str, Any]) -> RunConfig:
    known = environments or {"shop": {}}
    return RunConfig.model_validate(
        {
            "name": "test",
            "model": {"build": "tiny"},
            "environments": {name: {"dataset": "train.jsonl", **own} for name, own in known.items()},
            "training": training,
        }
    )


def test_every_key_about_groups_reaches_the_rule() -> None:
    usual = policy_rules.group_rule(config_of({}))
    other = {
        "advantage": "leave-one-out",
        "divide_by_std": False,
        "min_valid": 3,
        "limits": "mask",
        "min_range": 0.2,
        "sign_clip": True,
        "cap_malformed": True,
        "turn_spread": 0.1,
        "overlong": {"begins": 100, "full": 200, "penalty": 0.5},
        "turn_discount": 0.9,
    }
    changed = policy_rules.group_rule(config_of(other))
    assert [name for name in usual.__slots__ if getattr(usual, name) == getattr(changed, name)] == []
    assert usual.min_valid is None, "half of the group"


def test_every_key_about_the_loss_reaches_it() -> None:
    keys = {
        "clip_low": 0.1,
        "clip_high": 0.4,
        "dual_clip": 3.0,
        "ratio": "decoupled",
        "weight_cap": 2.0,
        "weight_by": "sequence",
        "weight_normalised": True,
        "reference": "initial",
        "reference_weight": 0.1,
        "reference_in": "reward",
        "divide_by_std": False,
        "denominator": "kept",
    }
    usual = policy_rules.policy_loss(config_of({}).training, longest=0)
    changed = policy_rules.policy_loss(config_of(keys).training, longest=0)
    of_loss = keys.keys() - {"reference", "divide_by_std"}
    assert [name for name in of_loss if getattr(usual, name) == getattr(changed, name)] == []
    assert (usual.dual_clip, usual.weight_cap) == (None, None)
    given = {"token": [0.5, 5], "sequence": [0.1, 10.0], "geometric": [0.99, 1.01], "k2": 0.1, "k3": 0.2}
    masks = policy_rules.policy_loss(config_of({"masks": given}).training, longest=0).masks
    assert [getattr(masks, name) for name in given] == [(0.5, 5.0), (0.1, 10.0), (0.99, 1.01), 0.1, 0.2]
    assert not usual.masks.active
    critic = {"discount": 0.9, "trace": 0.8, "clip": 0.1, "normalise": False, "alone": 2}
    ppo = policy_rules.policy_loss(config_of({"loss": "ppo", "critic": critic}).training, longest=0)
    assert ppo.critic == CriticRule(**critic)  # type: ignore[arg-type]
    assert usual.critic is None
    fixed = policy_rules.policy_loss(config_of({"aggregation": "dr-grpo"}).training, longest=128)
    assert (fixed.aggregation, fixed.longest) == ("dr-grpo", 128)


def test_each_form_of_the_loss_has_defaults_of_its_own_that_the_file_overrides() -> None:
    def loss_of(training: dict[str, Any]) -> PolicyLoss:
        return policy_rules.policy_loss(config_of(training).training, longest=0)

    assert loss_of({"loss": "gspo"}) == PolicyLoss(
        kind="gspo", clip_low=3e-4, clip_high=4e-4, aggregation="record-mean"
    )
    assert loss_of({"loss": "gspo", "clip_high": 1e-3}).clip_high == 1e-3
    assert loss_of({"loss": "cispo"}).ratio_cap == 5
    minirl = loss_of({"loss": "minirl"})
    assert (minirl.ratio, minirl.clip_high, minirl.aggregation) == ("decoupled", 0.27, "record-sum")
    assert not config_of({"loss": "minirl"}).training.divide_by_std
    ce = loss_of({"loss": "ce-grpo", "kept_below": 0.1, "kept_above": 0.2})
    assert (ce.kept_below, ce.kept_above) == (0.1, 0.2)


@pytest.mark.parametrize(
    ("training", "why"),
    [
        ({"loss": "minirl", "weight_cap": 2.0}, "would count the same difference twice"),
        ({"loss": "gspo", "aggregation": "token-mean"}, "must be record-mean"),
        ({"loss": "gspo", "strategy": "decay", "hard_bound": 4}, "gspo has one ratio for a record"),
        ({"loss": "cispo", "dual_clip": 3.0}, "dual_clip belongs to the losses grpo and ppo"),
        ({"masks": {"token": [0.5]}}, "masks.token must be two numbers"),
        ({"masks": {"sequence": [2.0, 3.0]}}, "must contain 1"),
        ({"reference": "initial", "reference_weight": 0.1, "reference_in": "reward"}, "divide_by_std: false"),
        ({"loss": "gpro"}, "grpo"),
        ({"loss": "ppo", "advantage": "grpo"}, "needs the advantages of a critic"),
        ({"loss": "ppo", "normalise": True, "balance": True}, "normalise and balance are for advantages of groups"),
        ({"overlong": {"begins": 200, "full": 100, "penalty": 1.0}}, "must grow over some tokens"),
    ],
)
def test_contradictory_training_keys_are_refused_with_a_sentence(training: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        config_of(training)


def test_environment_has_the_rules_of_the_run_and_its_own() -> None:
    training = {"bound": 2, "strategy": "decay", "hard_bound": 4, "wait_limit_s": 60.0}
    rules = policy_rules.freshness(config_of(training, a={}, b={"bound": 6}, c={"strategy": "wait", "bound": 0}))
    assert set(rules.of_environments) == {"b", "c"}
    assert rules.of("a") is rules
    assert rules.oldest == 4
    assert rules.of("b").oldest == 6, "a wider bound also widens the hard bound"
    assert rules.of("c") == Freshness("wait", 0, 4, 60.0)
    assert rules.of("c").oldest == 0


def test_every_key_about_decay_reaches_it() -> None:
    keys = {"out_of_date_decay": 0.1, "epsilon": 0.1, "extra": 0.3, "cap": 2.0, "strict": True}
    usual = policy_rules.decay(config_of({}).training.decay)
    changed = policy_rules.decay(config_of({"decay": keys}).training.decay)
    assert [name for name in keys if getattr(usual, name) == getattr(changed, name)] == []
