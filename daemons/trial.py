"""Tries episodes without a run: `python -m daemons.trial`, which reads what to try as JSON and writes lines of JSON.

Invariants:
- There is no coordinator, no database and no port that is open to other machines; nothing is left except what tools did
  outside of their sessions.
- Engine, toolbox, agent loop and scorers are those of a run.
- If anything goes wrong, the last line reports it as a sentence.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from agentrl.config.data_plane import Rollout
from agentrl.config.run import RunConfig
from agentrl.errors import AgentrlError, ExitCode
from agentrl.rollout import trial, user_code
from agentrl.rollout.episode_run import Surroundings
from agentrl.store.documents import Task
from daemons.interruptions import until_stopped
from daemons.program_messages import keep_messages_apart, tell
from daemons.trial_services import TriedModel, surroundings, tasks_of, without_token_limits

AT_ONCE = 8
Program = Callable[[RunConfig, Mapping[str, Any]], Coroutine[Any, Any, None]]


async def main(config: RunConfig, asked: Mapping[str, Any]) -> None:
    name, model = asked["environment"], TriedModel(asked["replies"], asked["url"], asked["model_name"])
    user_code.load(config)
    tasks = await tasks_of(config, name, int(asked["episodes"]))
    tasks = [without_token_limits(task) for task in tasks] if model.url else tasks
    settings = config.rollout
    async with surroundings(config, model, at_once=AT_ONCE) as around:
        tell("began", environment=name, episodes=len(tasks), model=model.url or str(config.model and config.model.path))
        together = asyncio.Semaphore(AT_ONCE)
        await asyncio.gather(*(_try(around, task, number, settings, together) for number, task in enumerate(tasks, 1)))


async def _try(around: Surroundings, task: Task, number: int, settings: Rollout, together: asyncio.Semaphore) -> None:
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


def run(lines: Sequence[str], program: Program = main) -> int:
    """Runs a whole program that a command started; returns its exit code."""
    asked = json.loads(lines[0])
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr, format="%(message)s")
    began = time.monotonic()
    try:
        config = RunConfig.model_validate(asked["config"])
        asyncio.run(until_stopped(program(config, asked)))
    except asyncio.CancelledError:
        return ExitCode.INTERRUPTED
    except AgentrlError as wrong:
        tell("failed", message=wrong.message, hint=wrong.hint, exit_code=int(wrong.exit_code))
        return int(wrong.exit_code)
    tell("done", took_s=round(time.monotonic() - began, 3))
    return ExitCode.OK


if __name__ == "__main__":
    keep_messages_apart()
    sys.exit(run(sys.stdin.readlines()))
