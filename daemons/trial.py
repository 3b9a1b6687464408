"""Tries episodes without a run: `python -m daemons.trial`, which reads what to try as JSON and writes lines of JSON.

Invariants:
- There is no coordinator, no database and no port beyond this machine; nothing is left but what tools did outside.
- Engine, toolbox, agent loop and scorers are those of a run.
- Whatever goes wrong is the last line, as a sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from agentrl.chat.template import Template
from agentrl.config.run import RunConfig
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.errors import AgentrlError, ConfigError, ExitCode
from agentrl.http.token_server import listening
from agentrl.rollout import chat_format, trial, user_code
from agentrl.rollout.episode_run import EpisodeSettings, Surroundings
from agentrl.rollout.scorers import close_scorers
from agentrl.steward.epochs import task_of
from agentrl.steward.settings import from_config
from agentrl.store import datasets
from agentrl.store.documents import Task
from agentrl.toolbox.api import build_app
from agentrl.toolbox.client import ToolboxClient
from agentrl.toolbox.toolbox import Toolbox
from agentrl.training.initial_model import model_directory

VERSION = 0
AT_ONCE = 8
LOOK_EVERY_S = 0.05


def tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}, default=str), flush=True)


async def main(config: RunConfig, name: str, episodes: int, replies: Sequence[str]) -> None:
    user_code.load(config)
    tasks = _tasks(config, name, episodes)
    with tempfile.TemporaryDirectory(prefix="agentrl-try-") as folder:
        directory = model_directory(config, Path(folder), [])
        chat = chat_format.read(directory, config.model.template if config.model else None)
        async with (
            _engine(config, directory, chat.template, replies) as engine,
            _toolbox(config, Path(folder)) as toolbox,
        ):
            around = Surroundings(
                config=config,
                directory=trial.TrialDirectory(engine, toolbox, version=VERSION, slots=AT_ONCE),
                template=chat.template,
                vocabulary=chat.vocabulary,
                wait=lambda what, on, at_most_s: contextlib.nullcontext(),
            )
            rollout = config.rollout
            settings = EpisodeSettings(
                max_turns=rollout.max_turns, call_s=float(rollout.call_s), episode_s=float(rollout.episode_s)
            )
            tell("began", environment=name, episodes=len(tasks), model=str(config.model and config.model.path))
            together = asyncio.Semaphore(AT_ONCE)
            try:
                await asyncio.gather(
                    *(_try(around, task, number, settings, together) for number, task in enumerate(tasks, 1))
                )
            finally:
                await close_scorers()


async def _try(
    around: Surroundings, task: Task, number: int, settings: EpisodeSettings, together: asyncio.Semaphore
) -> None:
    async with together:
        tell("episode", episode=number, query=task.query, answer=task.answer)
        tried = await trial.try_once(around, task, number, settings, lambda call: tell(**trial.as_plain(call, number)))
    scores = tried.scores
    tell(
        "ended",
        episode=number,
        outcome=tried.outcome,
        error=tried.error,
        score=None if scores is None else scores.value,
        parts={} if scores is None else dict(scores.parts),
        turns=tried.turns,
        tokens=tried.tokens,
        took_s=round(tried.took_s, 3),
    )


def _tasks(config: RunConfig, name: str, episodes: int) -> list[Task]:
    """The first rows of the dataset, again from the beginning if there are fewer."""
    dataset = config.environments[name].dataset
    rows = datasets.split_of(datasets.read(dataset), "train", default="train")
    if not rows:
        raise ConfigError(f"{dataset} has no rows to train on.")
    settings = from_config(config).environments[name]
    return [
        task_of(name, settings, rows[number % len(rows)], split="train", epoch=0, row_number=number, place=number)
        for number in range(episodes)
    ]


@contextlib.asynccontextmanager
async def _engine(
    config: RunConfig, directory: Path, template: Template, replies: Sequence[str]
) -> AsyncIterator[EmbeddedEngine | trial.ToldReplies]:
    if replies:
        yield trial.ToldReplies(template, replies, VERSION)
        return
    engine = EmbeddedEngine(slots=AT_ONCE, context=config.sampling.context)
    engine.start()
    try:
        await engine.serve_unpublished(directory, VERSION)
        yield engine
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def _toolbox(config: RunConfig, run_dir: Path) -> AsyncIterator[ToolboxClient | None]:
    if not config.tools:
        yield None
        return
    token = secrets.token_urlsafe()
    toolbox = Toolbox(config.tools, run_dir=run_dir, name="toolbox")
    async with toolbox.running(), listening(build_app(toolbox, token)) as url:
        await _servers_are_there(toolbox)
        client = ToolboxClient(url, token)
        try:
            yield client
        finally:
            await client.aclose()


async def _servers_are_there(toolbox: Toolbox) -> None:
    """Raises ConfigError for a server that does not start."""
    while not all(server.usable for server in toolbox.servers()):
        for server in toolbox.servers():
            if server.problem:
                raise ConfigError(f"tools.{server.id}: {server.problem}")
        await asyncio.sleep(LOOK_EVERY_S)


async def _until_stopped(config: RunConfig, asked: dict[str, Any]) -> None:
    """The servers of tools end in order when a person interrupts this."""
    trying = asyncio.ensure_future(main(config, asked["environment"], int(asked["episodes"]), asked["replies"]))
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, trying.cancel)
    await trying


def run(lines: Sequence[str]) -> int:
    asked = json.loads(lines[0])
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(message)s")
    began = time.monotonic()
    try:
        config = RunConfig.model_validate(asked["config"])
        asyncio.run(_until_stopped(config, asked))
    except asyncio.CancelledError:
        return ExitCode.INTERRUPTED
    except AgentrlError as wrong:
        tell("failed", message=wrong.message, hint=wrong.hint, exit_code=int(wrong.exit_code))
        return int(wrong.exit_code)
    tell("done", took_s=round(time.monotonic() - began, 3))
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(run(sys.stdin.readlines()))
