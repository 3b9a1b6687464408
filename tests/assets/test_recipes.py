"""The recipes: each is a valid run file that contains only a few lines of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config import policy_rules
from agentrl.config.load import Loaded, load_config
from agentrl.config.show import advice

CHECKOUT = Path(__file__).parents[2]
RECIPES = CHECKOUT / "assets" / "recipes"
BASES = ("base", "shop")
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem not in BASES)


def recipe(name: str) -> Loaded:
    return load_config(RECIPES / f"{name}.yaml", environ={})


def test_every_recipe_is_named_after_its_file_and_extends_the_base() -> None:
    assert NAMES == ["decoupled", "evaluate", "grpo", "gspo", "minirl", "ppo", "sft"]
    for name in NAMES:
        loaded = recipe(name)
        assert (loaded.config.name, loaded.config.dir) == (name, str(CHECKOUT / "runs" / name))
        assert loaded.sources["model.build"].startswith("base.yaml:"), "recipes do not set a model; the base does"
        assert advice(loaded) == []


def test_all_recipes_read_the_same_data() -> None:
    data = CHECKOUT / "runs" / "shop-data"
    for name in NAMES:
        config = recipe(name).config
        assert config.is_job is (name == "sft")
        if config.is_job:
            assert config.training.demonstrations == str(data / "demonstrations.jsonl")
        else:
            assert config.environments["shop"].dataset == str(data / "train.jsonl")
            assert config.training.warmup.dataset == str(data / "demonstrations.jsonl")


@pytest.mark.parametrize(
    ("name", "kind", "ratio", "aggregation"),
    [
        ("grpo", "grpo", "bypass", "token-mean"),
        ("minirl", "minirl", "decoupled", "record-sum"),
        ("gspo", "gspo", "bypass", "record-mean"),
        ("decoupled", "grpo", "decoupled", "token-mean"),
        ("ppo", "ppo", "bypass", "token-mean"),
    ],
)
def test_recipes_of_losses_have_the_loss_of_their_name(name: str, kind: str, ratio: str, aggregation: str) -> None:
    loss = policy_rules.policy_loss(recipe(name).config.training, longest=0)
    assert (loss.kind, loss.ratio, loss.aggregation) == (kind, ratio, aggregation)


def test_the_recipe_of_evaluation_trains_nothing() -> None:
    config = recipe("evaluate").config
    assert config.training.frozen
    assert config.training.warmup.steps == 0, "named weights are evaluated as they are"
    assert config.evaluation.every == 1
