"""The model that a run begins with.

Invariant: the directory is whole or not there; built once, it is kept, so all lives of the run begin with the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from agentrl.config.run import RunConfig
from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.errors import ConfigError
from agentrl.store import datasets
from agentrl.training.atomic_directories import whole_directory
from agentrl.training.demonstrations import Demonstration

BUILT = "model"
"""Within the run's directory."""
MOST_TEXTS = 4_000
"""Enough for the merges of a small vocabulary."""


def model_directory(config: RunConfig, run_dir: Path, demonstrations: list[Demonstration]) -> Path:
    """Where it is; built now if the configuration says so and it is not there yet."""
    if config.model is None:
        raise ConfigError("The run has no model to train.", hint="Write `model: {path: ...}` or `{build: tiny}`.")
    if config.model.path:
        return Path(config.model.path)
    target = run_dir / BUILT
    if not (target / "config.json").is_file():
        longest = max(4096, config.sampling.context)
        texts = list(itertools.islice(_texts(config, demonstrations), MOST_TEXTS))
        with whole_directory(target, durable=True) as directory:
            build_tiny(directory, texts, seed=config.training.random, max_position_embeddings=longest)
    return target


def has_held_out_tasks(config: RunConfig) -> bool:
    return any(
        environment.evaluation or datasets.split_of(datasets.read(Path(environment.dataset)), "eval", default="train")
        for environment in config.environments.values()
    )


def _texts(config: RunConfig, demonstrations: list[Demonstration]) -> Iterator[str]:
    """What the vocabulary is made for: demonstrations first, they show how the agent is to speak."""
    for one in demonstrations[: MOST_TEXTS // 8]:
        yield from one.texts
    for environment in config.environments.values():
        yield environment.system
        for row in datasets.read(Path(environment.dataset)):
            yield row.query
