"""Records as samplers leave them in the store, written by the store's own functions."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import Actor
from agentrl.store import claims, document_ids, documents, groups
from agentrl.store.call_writer import Writer
from agentrl.store.claims import Claim, Ending
from agentrl.store.database import Database
from agentrl.store.documents import DBRecordData, DispatchedSamplingTask, Epoch
from agentrl.tokens.binary_format import pack_floats, pack_ids
from agentrl.tokens.token_tree import TokenTree
from agentrl.training.trainer import Trainer
from agentrl.unit.unit import Unit, UnitParts
from agentrl.unit.unit_environment import UnitEnvironment
from tests.store.flow import RULE, admit, claim_one, queue, sampler
from tests.training.trees import Call, chain, some

OWNER = "sampler-0.1"


def configuration(run_dir: Path, model: Path, **training: Any) -> RunConfig:
    dataset = run_dir / "train.jsonl"
    dataset.write_text(json.dumps({"query": "what costs an apple?", "answer": "3"}) + "\n")
    evaluation = training.pop("evaluation", "")
    return RunConfig.model_validate(
        {
            "name": "test",
            "model": {"path": str(model)},
            "environments": {"shop": {"dataset": str(dataset), "evaluation": evaluation}},
            "sampling": {"n": 2},
            "training": {
                "groups": 2,
                "learning_rate": 1e-3,
                "optimizer": "muon",
                "bound": 100,
                "checkpoint_every": 2,
                # Tests compare what engines get with what was trained.
                "publication": {"precision": "float32"},
                **training,
            },
        }
    )


def trainer(db: Database, config: RunConfig, run_dir: Path, *, life: int = 1) -> Trainer:
    environment = UnitEnvironment(unit="trainer-0", group="trainer", slot=0, incarnation=life, run_dir=run_dir)
    unit = Unit(UnitParts(environment))
    return Trainer(unit, db, config)


def after(patch: pytest.MonkeyPatch, owner: object, name: str, act: Callable[[], object]) -> None:
    """Call `act` each time after this function or coroutine has finished and before its caller continues."""
    original = getattr(owner, name)

    def called(*arguments: Any, **options: Any) -> Any:
        done = original(*arguments, **options)
        act()
        return done

    async def awaited(*arguments: Any, **options: Any) -> Any:
        done = await original(*arguments, **options)
        act()
        return done

    patch.setattr(owner, name, awaited if inspect.iscoroutinefunction(original) else called)


async def closed_groups(
    db: Database,
    count: int,
    *,
    scores: Sequence[float] = (0.0, 1.0),
    log_prob: float = -5.6,
    version: int = 1,
    long: Mapping[int, int] | None = None,
) -> None:
    """Write this many groups of complete records that are ready to be trained. The sampled tokens depend only on the
    count. `long` gives the length of the prompts of a group, by its number."""
    chance = random.Random(count)
    await sampler(db, OWNER)
    writer = Writer(db)
    for number, task in enumerate(await queue(db, count)):
        assert await admit(db, task, n=len(scores))
        prompt = some(chance, 6, 9)
        if long and number in long:
            prompt = some(chance, long[number], long[number])
        for score in scores:
            claim = await claim_one(db, OWNER)
            assert claim is not None
            await _episode(db, writer, claim, chain(chance, prompt, 2), score, log_prob, version)
        assert await groups.close(db, task.id, RULE, Actor.SAMPLER) == "ready"
    await writer.close()


async def end_of_data(db: Database) -> None:
    rows = await db.count("Task", {})
    epoch = Epoch(id=document_ids.epoch_id("shop", "train", 0), environment="shop", rows=rows, inserted=rows, done=True)
    await db.insert_new("Epoch", [documents.to_bson(epoch)])


async def _episode(
    db: Database, writer: Writer, claim: Claim, calls: Sequence[Call], score: float, log_prob: float, version: int
) -> None:
    record = claim.record.id
    tree = TokenTree()
    for index, prompt, output in calls:
        base, length = tree.base(prompt)
        tree.insert(index, prompt, output)
        call = DispatchedSamplingTask(
            id=document_ids.call_id(record, index),
            record=record,
            task=claim.task.id,
            index=index,
            owner=OWNER,
            base="" if base is None else document_ids.call_id(record, base),
            base_length=length,
            prompt=pack_ids(prompt[length:]),
            sampling={"temperature": 1.0, "top_p": 1.0},
        )
        call.status, call.finish_reason = "done", "stop"
        call.output, call.versions = pack_ids(output), [(version, len(output))]
        call.log_probs = pack_floats([log_prob - 0.1 * (token % 5) for token in output])
        await writer.insert(call)
    tokens = sum(len(output) for _, _, output in calls)
    ending = Ending(
        outcome=Outcome.ANSWERED,
        turns=len(calls),
        generated_tokens=tokens,
        oldest_version=version,
        newest_version=version,
        versions=[version],
    )
    assert await claims.finish(db, record, OWNER, ending)
    data = DBRecordData(
        id=record,
        task=claim.task.id,
        spans=tree.spans,
        trained_tokens=tokens,
        oldest_version=version,
        versions=[version],
    )
    assert await claims.score(db, record, OWNER, score, data)


async def task_statuses(db: Database) -> list[str]:
    return [task["status"] for task in await db.find("Task", {}, sort=[("_id", 1)])]
