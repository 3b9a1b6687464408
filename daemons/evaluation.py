"""Evaluates a model on environments without a run: `python -m daemons.evaluation`, which reads what to do as JSON and
writes lines of JSON.

Invariants:
- Attempts that are already in the file of results are not repeated; each attempt is written as soon as it ends.
- Engine, toolbox, agent loop, limits and scorers are those of a run.
- If anything goes wrong, the last line reports it as a sentence.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from agentrl.adapters.sources import source_of
from agentrl.config.data_plane import Rollout
from agentrl.config.run import RunConfig
from agentrl.evaluation import attempts, progress, results_file
from agentrl.evaluation.progress import Progress
from agentrl.evaluation.results_file import ResultsFile
from agentrl.protocol.evaluation_commands import Attempt
from agentrl.rollout import trial, user_code
from agentrl.rollout.episode_run import Surroundings
from agentrl.steward.epochs import held_out_rows, task_of
from agentrl.steward.settings import from_config
from agentrl.store import datasets
from agentrl.store.documents import Task
from daemons import trial as trial_program
from daemons.program_messages import keep_messages_apart, tell
from daemons.trial_services import (
    TriedModel,
    surroundings,
    with_images,
    without_token_limits,
)

IMAGES_WITHIN_S = 60.0
"""How long an address of images may be away: what is refused is a result, and is not tried again."""


@dataclass(frozen=True, slots=True)
class EvaluationAttempt:
    """One attempt that is to be made."""

    task: Task
    name: str
    """The row's own id, or its digest."""
    attempt: int
    key: str
    setup: str


async def main(config: RunConfig, asked: Mapping[str, Any]) -> None:
    user_code.load(config)
    with ResultsFile(Path(asked["out"])) as file:
        every = list(_wanted(config, asked))
        known = _known(file, asked["name"], every)
        wanted = [one for one in every if one.key not in known]
        tell("began", model=asked["name"], attempts=len(wanted), known=len(every) - len(wanted))
        if wanted:
            model = TriedModel(url=asked["url"], name=asked["model_name"])
            async with surroundings(config, model, at_once=int(asked["at_once"])) as around:
                tasks = await with_images(config, [one.task for one in wanted], patience_s=IMAGES_WITHIN_S)
                tasks = [without_token_limits(task) for task in tasks] if model.url else tasks
                wanted = [replace(one, task=task) for one, task in zip(wanted, tasks, strict=True)]
                far = Progress(model=asked["name"], wanted=len(wanted))
                async with progress.kept(file.file, far):
                    await _all(around, far, wanted, file, int(asked["at_once"]))


def _known(file: ResultsFile, model: str, wanted: Sequence[EvaluationAttempt]) -> set[str]:
    """Keys of results that are there. They count again if the model had another name or setup since."""
    results = results_file.read(file.file)
    known = {one.key: one for one in results if one.is_result}
    count = {(one.key, one.model, one.setup) for one in attempts.counting(results)}
    for one in wanted:
        if one.key in known and (one.key, model, one.setup) not in count:
            file.add(msgspec.structs.replace(known[one.key], model=model, setup=one.setup))
    return set(known)


async def _all(
    around: Surroundings, far: Progress, wanted: Sequence[EvaluationAttempt], file: ResultsFile, at_once: int
) -> None:
    """Yields attempts one at a time: the next ones begin as others end, so a long list needs no memory."""
    rest = iter(enumerate(wanted, 1))
    settings = around.config.rollout

    async def one_after_another() -> None:
        for number, one in rest:
            made = await _make(around, far.model, one, number, settings)
            file.add(made)
            far.ended += 1
            far.failed += not made.is_result
            tell("ended", number=number, environment=one.task.environment, score=made.score, outcome=made.outcome)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(wanted))):
                group.create_task(one_after_another(), name="attempts")
    except ExceptionGroup as several:
        raise several.exceptions[0] from several  # One error is enough, for example that the file cannot be written.


async def _make(around: Surroundings, model: str, one: EvaluationAttempt, number: int, settings: Rollout) -> Attempt:
    turns: list[dict[str, Any]] = []
    tried = await trial.try_once(
        around, one.task, one.attempt, settings, lambda call: turns.append(trial.as_plain(call, number))
    )
    task, scores = one.task, tried.scores
    return Attempt(
        key=one.key,
        model=model,
        environment=task.environment,
        setup=one.setup,
        task=one.name,
        attempt=one.attempt,
        query=task.query,
        answer=task.answer,
        score=None if scores is None else scores.value,
        parts={} if scores is None else dict(scores.parts),
        outcome=tried.outcome,
        error=tried.error,
        tags=attempts.tags_of(task.extra),
        difficulty=attempts.difficulty_of(task.extra),
        tokens=tried.tokens,
        took_s=round(tried.took_s, 3),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        turns=tuple({"text": turn["text"], "tools": turn["tools"]} for turn in turns),
    )


def _wanted(config: RunConfig, asked: Mapping[str, Any]) -> Iterator[EvaluationAttempt]:
    """The wanted attempts, the first attempt at each task first, so that an evaluation that is stopped has covered all
    tasks."""
    settings = from_config(config)
    rule = settings.sampling_of_evaluation()
    model = asked["url"] or attempts.digest_of_model(Path(asked["directory"]))
    rows = {name: _rows(config, name, int(asked["limit"])) for name in asked["environments"]}
    digests = {name: _digest(config, name) for name in rows}
    model = f"{model} {asked['model_name']}"
    setups = {name: attempts.setup_of(model=model, environment=digests[name], rule=rule) for name in rows}
    for attempt, (name, those) in itertools.product(range(int(asked["attempts"])), rows.items()):
        for place, row in enumerate(those):
            task = task_of(name, settings.environments[name], row, split="eval", epoch=0, row_number=place, place=place)
            content = datasets.digest([row])
            yield EvaluationAttempt(
                task=msgspec.structs.replace(task, sampling=rule),
                name=row.id or content[:12],
                attempt=attempt,
                key=attempts.key_of(
                    model=model,
                    environment=digests[name],
                    task=content,
                    rule=rule,
                    attempt=attempt,
                ),
                setup=setups[name],
            )


def _rows(config: RunConfig, name: str, limit: int) -> list[datasets.Row]:
    """The held-out rows; all rows if the dataset has no held-out ones."""
    environment = config.environments[name]
    rows = datasets.read(environment.dataset)
    rows = held_out_rows(environment, rows) or rows
    return rows[:limit] if limit else rows


def _digest(config: RunConfig, name: str) -> str:
    environment = config.environments[name]
    settings = environment.model_dump(mode="json", exclude={"dataset", "evaluation", "weight", "epochs", "shuffle"})
    is_file = environment.code and source_of(environment.code) is None
    return attempts.digest_of_environment(settings, [Path(environment.code)] if is_file else [])


if __name__ == "__main__":
    keep_messages_apart()
    sys.exit(trial_program.run(sys.stdin.readlines(), main))
