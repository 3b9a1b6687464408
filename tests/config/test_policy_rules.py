"""Every key of a run file reaches its policy rule."""

from __future__ import annotations

from typing import Any

from agentrl.config import policy_rules
from agentrl.config.run import RunConfig
from agentrl.policies.freshness import Freshness


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
        "denominator": "kept",
    }
    usual = policy_rules.policy_loss(config_of({}).training, longest=0)
    changed = policy_rules.policy_loss(config_of(keys).training, longest=0)
    assert [name for name in keys if getattr(usual, name) == getattr(changed, name)] == []
    assert (usual.dual_clip, usual.weight_cap) == (None, None)
    fixed = policy_rules.policy_loss(config_of({"aggregation": "dr-grpo"}).training, longest=128)
    assert (fixed.aggregation, fixed.longest) == ("dr-grpo", 128)


def test_environment_has_the_rules_of_the_run_and_its_own() -> None:
    training = {"bound": 2, "strategy": "decay", "hard_bound": 4, "wait_limit_s": 60.0}
    rules = policy_rules.freshness(config_of(training, a={}, b={"bound": 6}, c={"strategy": "wait", "bound": 0}))
    assert set(rules.of_environments) == {"b", "c"}
    assert rules.of("a") is rules
    assert rules.oldest == 4
    assert rules.of("b").oldest == 6, "a wider bound is wider under decay, too"
    assert rules.of("c") == Freshness("wait", 0, 4, 60.0)
    assert rules.of("c").oldest == 0


def test_every_key_about_decay_reaches_it() -> None:
    keys = {"out_of_date_decay": 0.1, "epsilon": 0.1, "extra": 0.3, "cap": 2.0, "strict": True}
    usual = policy_rules.decay(config_of({}).training.decay)
    changed = policy_rules.decay(config_of({"decay": keys}).training.decay)
    assert [name for name in keys if getattr(usual, name) == getattr(changed, name)] == []
