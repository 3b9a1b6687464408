"""What the steward answers about evaluations of the run's versions, over a real database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentrl.client import long_answers
from agentrl.client.command_methods import CommandMethods
from agentrl.errors import RefusedError, UnknownNameError
from agentrl.evaluation import of_run
from agentrl.protocol.evaluation_commands import Attempt, ListEvaluations, ShowEvaluation
from agentrl.queries.evaluations import KEPT_S, EvaluationQueries
from agentrl.store import evaluations, tasks
from agentrl.store.database import Database
from agentrl.store.documents import Task, to_bson
from agentrl.store.weight_documents import Publication
from tests.store import flow


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def evaluate(db: Database, version: int, scores: dict[str, list[float]], *, queued: int = 0) -> None:
    """A version of which these tasks have ended, and `queued` more wait."""
    publication = Publication(id=version, lineage="l", step=10 * version, status="retained", evaluation="queued")
    await db.insert_many("Publication", [to_bson(publication)])
    rows: list[Task] = []
    for place, name in enumerate([*scores, *(f"later-{number}" for number in range(queued))]):
        row = flow.row(place, purpose="eval", version=version)
        extra = {"id": name, "tags": ["even" if place % 2 == 0 else "odd"]}
        rows.append(msgspec.structs.replace(row, id=f"shop/eval/{version}/{place:06d}", epoch=version, extra=extra))
    await tasks.insert(db, rows)
    for task, those in zip(rows, scores.values(), strict=False):
        assert await flow.admit(db, task, n=len(those))
        assert await flow.run_group(db, those, version=version) == "ready"


class InParts(CommandMethods):
    """A client to which no more than three attempts fit into a message."""

    def __init__(self, queries: EvaluationQueries) -> None:
        self._queries = queries

    async def call(self, name: str, args: Any = None, **how: Any) -> Any:
        story = await self._queries.show(args)
        if len(story.attempts) > 3:
            raise RefusedError("more than fits into a message")
        return story


async def test_evaluations_show_progress_figures_and_the_best_and_are_compared(db: Database, tmp_path: Path) -> None:
    await flow.sampler(db)
    names = [f"t{number}" for number in range(8)]
    await evaluate(db, 3, {name: [0.0, 1.0] for name in names})
    await evaluations.finish(db, 3, {"evaluation": 0.5, "evaluation_margin": 0.1})
    await evaluate(db, 4, {name: [1.0, 1.0] for name in names})
    await evaluations.finish(db, 4, {"evaluation": 1.0, "evaluation_margin": 0.1})
    await evaluate(db, 5, {"t0": [1.0, 0.0]}, queued=3)
    await db.insert_many("Publication", [{"_id": 6, "evaluation": "wanted"}, {"_id": 7, "evaluation": ""}])
    await db.insert_many("Checkpoint", [{"_id": "step-40", "version": 4, "status": "complete", "step": 40}])

    queries = EvaluationQueries(db)
    wanted, under_way, best, first = await queries.rows(ListEvaluations())
    assert (wanted.version, wanted.state, wanted.environment) == (6, "wanted", "")
    assert (under_way.state, under_way.ended, under_way.tasks, under_way.attempts) == ("queued", 1, 4, 2)
    assert (best.version, best.is_best, best.checkpoint, best.mean, best.step) == (4, True, "step-40", 1.0, 40)
    assert (first.mean, first.passed, first.is_best, first.on == best.on) == (0.5, {"1": 0.5, "2": 1.0}, False, True)
    assert [row.version for row in await queries.rows(ListEvaluations(1))] == [6]

    stories = [await queries.show(ShowEvaluation(version)) for version in (3, 4)]
    assert await long_answers.evaluated(InParts(queries), 4) == [*stories[1].attempts]
    (part,) = of_run.compared(*(story.attempts for story in stories))
    assert (part.tasks, part.better, part.difference, part.shown) == (8, 8, 0.5, True)
    assert {one.part for one in of_run.compared(*(story.attempts for story in stories), "tag")} == {"even", "odd"}
    # A file of `agentrl eval run` has no ids of rows without one, but the same queries and answers.
    same = [
        Attempt(key=str(n), model="base", environment="shop", task=f"digest {n}", attempt=0, score=0.0, answer=str(n),
                query=f"what costs item {n}?")
        for n in range(8)
    ]  # fmt: skip
    (against_file,) = of_run.compared(same, stories[1].attempts)
    assert (against_file.tasks, against_file.better) == (8, 8)
    with pytest.raises(UnknownNameError, match="Version 7 was not evaluated"):
        await queries.show(ShowEvaluation(7))


async def test_an_attempt_that_was_made_again_is_no_failure(db: Database) -> None:
    await flow.sampler(db)
    queries = EvaluationQueries(db)
    await evaluate(db, 1, {"t0": [1.0], "t1": [0.0]})
    first = await db.find_one("Record", {"task": "shop/eval/1/000000"})
    assert first is not None
    again = {
        "_id": f"{first['_id']}-again",
        "attempt": 2,
        "status": "failed",
        "outcome": "engine_died",
        "error": "gone",
    }
    await db.insert_many("Record", [first | {"_id": f"{first['_id']}-before", "attempt": 0, "status": "failed"}])
    assert [row.failed for row in await queries.rows(ListEvaluations())] == [0]
    await db.insert_many("Record", [first | again | {"_id": f"{first['_id']}-again"}])
    (row,) = await queries.rows(ListEvaluations())
    assert (row.failed, row.attempts, row.mean) == (1, 1, 0.0)
    (failed,) = [one for one in (await queries.show(ShowEvaluation(1))).attempts if one.score is None]
    assert (failed.outcome, failed.error, failed.task) == ("engine_died", "gone", "t0")


async def test_a_list_keeps_what_is_done_for_a_while_and_a_story_is_new(db: Database) -> None:
    await flow.sampler(db)
    clock = Clock()
    queries = EvaluationQueries(db, clock=clock)
    await evaluate(db, 1, {"t0": [1.0]})
    await evaluations.finish(db, 1, {"evaluation": 1.0})
    await evaluate(db, 2, {"t0": [1.0]})
    scored_again = {"$set": {"score": 0.0}}

    async def means() -> list[float | None]:
        return [row.mean for row in await queries.rows(ListEvaluations())]

    assert await means() == [1.0, 1.0]
    await db.update_many("Record", {}, scored_again)
    clock.now += KEPT_S / 2
    assert await means() == [0.0, 1.0], "a running evaluation is read each time"
    assert (await queries.show(ShowEvaluation(1))).rows[0].mean == 0.0
    clock.now += KEPT_S / 2
    assert await means() == [0.0, 0.0]
