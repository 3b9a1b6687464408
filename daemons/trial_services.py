"""The services that episodes without a run need: the text format of a model, tool servers, tasks.

Invariants:
- No port is open to other machines, and everything ends with its context.
- Nothing here imports torch: an episode whose turns are written beforehand needs no model.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agentrl.chat.template import Template
from agentrl.config.run import RunConfig
from agentrl.engines.embedded.tiny_words import build_words
from agentrl.engines.interface import Generates
from agentrl.environments import user_code_guard, user_tasks
from agentrl.errors import ConfigError
from agentrl.images.run_images import limits_of
from agentrl.other_models.ledger import MemoryLedger
from agentrl.rollout import chat_format, trial
from agentrl.rollout.chat_api_model import ChatApiModel
from agentrl.rollout.contract.scripted_model import ScriptedModel
from agentrl.rollout.episode_run import Surroundings
from agentrl.rollout.other_models import Helpers
from agentrl.rollout.scorers import close_scorers
from agentrl.rollout.service_directory import SamplerToolbox
from agentrl.rollout.shown_images import ShownImages, TemporaryShelf
from agentrl.steward import task_images
from agentrl.steward.epochs import task_of
from agentrl.steward.settings import from_config
from agentrl.store import datasets
from agentrl.store.documents import Task
from agentrl.training.initial_model import model_directory
from agentrl.training.model_check import refuse_model

VERSION = 0
KEY_VARIABLE = "OPENAI_API_KEY"
_MOST_TEXTS = 4_000


def words_directory(config: RunConfig, folder: Path) -> Path:
    """A directory with the tokenizer and the configuration of the run's model."""
    if config.model is not None and config.model.path:
        refuse_model(config)
        return Path(config.model.path)
    directory = folder / "words"
    build_words(directory, itertools.islice(_texts(config), _MOST_TEXTS))
    return directory


def _texts(config: RunConfig) -> Any:
    for environment in config.environments.values():
        yield environment.system
        for row in datasets.read(environment.dataset):
            yield row.query


_shelf = TemporaryShelf()
"""The images of this process."""


async def tasks_of(config: RunConfig, name: str, count: int) -> list[Task]:
    """The first rows of the dataset, again from the beginning if there are fewer."""
    dataset = config.environments[name].dataset
    rows = datasets.split_of(datasets.read(dataset), "train", default="train")
    if not rows:
        raise ConfigError(f"{dataset} has no rows to train on.")
    settings = from_config(config).environments[name]
    tasks = [
        task_of(name, settings, rows[number % len(rows)], split="train", epoch=0, row_number=number, place=number)
        for number in range(count)
    ]
    return await with_images(config, tasks)


async def with_images(config: RunConfig, tasks: list[Task], *, patience_s: float = 0.0) -> list[Task]:
    """Loads the images of the rows, which the model of this process can read. `patience_s`: how long an address may be
    away."""
    return await task_images.named(_shelf.put, tasks, limits_of(config), patience_s=patience_s)


def without_token_limits(task: Task) -> Task:
    """For a model with another tokenizer than the template: its output must not be cut by limits on tokens."""
    sampling = {**task.sampling, "max_tokens_per_call": 1 << 20, "context": 1 << 24}
    return msgspec.structs.replace(task, sampling=sampling)


@dataclass(frozen=True, slots=True)
class TriedModel:
    """The model of episodes without a run; by default the one of the configuration."""

    replies: Sequence[str] = ()
    """The turns of each episode, instead of a model."""
    url: str = ""
    """An OpenAI-compatible address, such as `http://127.0.0.1:8000/v1`; its key is in OPENAI_API_KEY."""
    name: str = "default"
    """The name of the model at the address."""


@contextlib.asynccontextmanager
async def surroundings(config: RunConfig, model: TriedModel, *, at_once: int) -> AsyncIterator[Surroundings]:
    """The services that episodes without a run need; `at_once` is how many episodes run in parallel.

    The code of the environments must be loaded (`user_code.load`). It is guarded while this is entered.
    """
    user_tasks.install()
    with tempfile.TemporaryDirectory(prefix="agentrl-try-") as folder:
        without_model = bool(model.replies or model.url)
        directory = (
            words_directory(config, Path(folder)) if without_model else model_directory(config, Path(folder), [])
        )
        chat = chat_format.of_run(directory, config)
        async with (
            _engine(config, directory, chat.template, model, at_once) as engine,
            toolbox(config, Path(folder)) as tools,
            user_code_guard.watched(),
            surroundings_of(config, chat, engine, tools, at_once=at_once) as around,
        ):
            yield around


@contextlib.asynccontextmanager
async def surroundings_of(
    config: RunConfig,
    chat: chat_format.ChatFormat,
    engine: Generates,
    tools: SamplerToolbox | None,
    *,
    at_once: int,
) -> AsyncIterator[Surroundings]:
    helpers = Helpers(config, MemoryLedger())
    helpers.provide()
    try:
        yield Surroundings(
            config=config,
            directory=trial.TrialDirectory(engine, tools, version=VERSION, slots=at_once),
            template=chat.template,
            vocabulary=chat.vocabulary,
            wait=lambda what, on, at_most_s: contextlib.nullcontext(),
            helpers=helpers,
            images=ShownImages(_shelf, chat.images, most_bytes=limits_of(config).bytes),
        )
    finally:
        await helpers.models.close()
        await close_scorers()


@contextlib.asynccontextmanager
async def _engine(
    config: RunConfig, directory: Path, template: Template, model: TriedModel, slots: int
) -> AsyncIterator[Generates]:
    if model.replies:
        yield ScriptedModel(template, VERSION, model.replies)
        return
    if model.url:
        remote = ChatApiModel(
            template,
            model.url,
            model.name,
            os.environ.get(KEY_VARIABLE, ""),
            VERSION,
            max_tokens=config.sampling.max_tokens,
        )
        try:
            yield remote
        finally:
            await remote.close()
        return
    from agentrl.engines.embedded.embedded_engine import EmbeddedEngine

    engine = EmbeddedEngine(slots=slots, context=config.sampling.context)
    engine.start()
    try:
        await engine.serve_unpublished(directory, VERSION)
        yield engine
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def toolbox(config: RunConfig, run_dir: Path) -> AsyncIterator[SamplerToolbox | None]:
    """None if the run has no tools."""
    if not config.tools:
        yield None
        return
    # Imported late, because the MCP SDK takes a third of a second to import.
    from daemons.trial_toolbox import running

    async with running(config, run_dir) as client:
        yield client
