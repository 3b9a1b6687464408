"""The model that a run begins with.

Invariants:
- the directory of a built model is complete or absent; it is built once, so all lineages of the run begin with the same
  model;
- this module imports nothing of the trainer, because programs that only sample must start in a second, and the
  trainer's imports take five.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

from agentrl.chat.template import Template
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.store import datasets
from agentrl.store.demonstrations import Demonstration
from agentrl.tokens import image_marks
from agentrl.training.atomic_directories import whole_directory
from agentrl.training.model_check import refuse_model

log = logging.getLogger("trainer")
BUILT = "model"
"""Within the run's directory."""
PROMPT_TOKENS = 256
"""The most tokens of a prompt that engines score."""
MAX_TEXTS = 4_000
"""Enough for the merges of a small vocabulary."""


def model_directory(config: RunConfig, run_dir: Path, demonstrations: list[Demonstration]) -> Path:
    """The directory of the model. Builds the model if the configuration asks for one and it does not exist yet."""
    if config.model is None:
        raise ConfigError("The run has no model to train.", hint="Write `model: {path: ...}` or `{build: tiny}`.")
    if config.model.path:
        refuse_model(config)
        return Path(config.model.path)
    target = run_dir / BUILT
    if not (target / "config.json").is_file():
        from agentrl.engines.embedded.tiny_model import build_tiny

        longest = max(4096, config.sampling.context)
        texts = list(itertools.islice(_texts(config, demonstrations), MAX_TEXTS))
        with whole_directory(target, durable=True) as directory:
            build_tiny(directory, texts, seed=config.training.random, max_position_embeddings=longest)
    return target


def prompts(config: RunConfig, model: Path, count: int) -> list[list[int]]:
    """The prompts of the first tasks of the run: real text for the canary."""
    try:
        template = Template.of(model, {} if config.model is None else config.model.template)
    except ConfigError as without:
        log.warning("the canary has no real text: %s", without.message)
        return []
    rows = (
        template.first(environment.system, [], image_marks.replaced(row.query, lambda _: ""))
        for environment in config.environments.values()
        for row in datasets.read_without_images(Path(environment.dataset))
    )
    most = min(PROMPT_TOKENS, config.sampling.context // 2)
    return [ids[:most] for ids in itertools.islice(rows, count)]


def _texts(config: RunConfig, demonstrations: list[Demonstration]) -> Iterator[str]:
    """The texts that the vocabulary is trained on: demonstrations first, because they show how the agent writes."""
    for demonstration in demonstrations[: MAX_TEXTS // 8]:
        yield from demonstration.texts
    for environment in config.environments.values():
        yield environment.system
        for row in datasets.read_without_images(Path(environment.dataset)):
            yield image_marks.shown(row.query)
