"""The model that a run begins with, and the reference policy that training is compared with.

Invariants:
- the directory of a built model is whole or absent; it is built once, so all lineages of the run begin alike;
- the reference is written once, before the first step that is compared with it, and no later lineage changes it;
- the reference is weights alone, so it is never trained.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

from agentrl.chat.template import Template
from agentrl.config.run import RunConfig
from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.errors import ConfigError
from agentrl.store import checkpoints, datasets
from agentrl.store.demonstrations import Demonstration
from agentrl.store.documents import CheckpointFile
from agentrl.training.atomic_directories import sweep_unfinished, whole_directory
from agentrl.training.checkpoints import described
from agentrl.training.learner import Learner
from agentrl.training.model_check import refuse_model

log = logging.getLogger("trainer")
BUILT = "model"
REFERENCE = Path(checkpoints.REFERENCE)
"""Both within the run's directory."""
PROMPT_TOKENS = 256
"""Of a prompt that engines score."""
MAX_TEXTS = 4_000
"""Enough for the merges of a small vocabulary."""


def model_directory(config: RunConfig, run_dir: Path, demonstrations: list[Demonstration]) -> Path:
    """The directory of the model. Builds the model if the configuration wants that and it does not exist yet."""
    if config.model is None:
        raise ConfigError("The run has no model to train.", hint="Write `model: {path: ...}` or `{build: tiny}`.")
    if config.model.path:
        refuse_model(config)
        return Path(config.model.path)
    target = run_dir / BUILT
    if not (target / "config.json").is_file():
        longest = max(4096, config.sampling.context)
        texts = list(itertools.islice(_texts(config, demonstrations), MAX_TEXTS))
        with whole_directory(target, durable=True) as directory:
            build_tiny(directory, texts, seed=config.training.random, max_position_embeddings=longest)
    return target


def keep_reference(run_dir: Path, learner: Learner, *, new_run: bool) -> dict[str, CheckpointFile]:
    """Writes the reference if it does not exist, and compares with it from now on; returns its files. With `new_run` an
    existing one is replaced: a lineage that never trained left it. A run that asks for a reference later gets its
    current weights. If adapters are trained, the reference is the model without them, and has no files."""
    if learner.settings.adapters is not None:
        learner.compare_with(None)
        return {}
    directory = run_dir / REFERENCE
    sweep_unfinished(directory.parent)
    if new_run or not directory.is_dir():
        with whole_directory(directory, durable=True) as unfinished:
            learner.save(unfinished)
    learner.compare_with(directory)
    return described(directory)


def prompts(config: RunConfig, model: Path, count: int) -> list[list[int]]:
    """The first tasks of the run, as a model gets them: real text for the canary."""
    try:
        template = Template.of(model, {} if config.model is None else config.model.template)
    except ConfigError as without:
        log.warning("the canary has no real text: %s", without.message)
        return []
    rows = (
        template.first(environment.system, [], row.query)
        for environment in config.environments.values()
        for row in datasets.read(Path(environment.dataset))
    )
    most = min(PROMPT_TOKENS, config.sampling.context // 2)
    return [ids[:most] for ids in itertools.islice(rows, count)]


def _texts(config: RunConfig, demonstrations: list[Demonstration]) -> Iterator[str]:
    """The texts that the vocabulary is trained on: demonstrations first, because they show how the agent writes."""
    for one in demonstrations[: MAX_TEXTS // 8]:
        yield from one.texts
    for environment in config.environments.values():
        yield environment.system
        for row in datasets.read(Path(environment.dataset)):
            yield row.query
