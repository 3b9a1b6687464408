"""Supervised training on what a run has recorded: its own tokens, mixed with demonstrations, chosen once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.files.pieces import content_of
from agentrl.store import publications
from agentrl.store.database import Database
from agentrl.store.demonstrations import read_demonstrations
from agentrl.training import offline
from agentrl.training.checkpoints import WEIGHTS_FILE
from agentrl.training.packing import rows
from agentrl.training.warmup import tokenized
from tests.training.rollouts import closed_groups
from tests.training.test_learning import CONVERSATION
from tests.training.test_offline import Reports, same_files


def job(db: Database, url: str, tiny: Path, tmp_path: Path, **training: Any) -> RunConfig:
    (tmp_path / "shown.jsonl").write_text(json.dumps(CONVERSATION))
    (tmp_path / "url").write_text(url)
    (tmp_path / "url").chmod(0o600)
    return RunConfig.model_validate(
        {
            "name": "imitation",
            "dir": str(tmp_path / "run"),
            "mongo": {"url": f"file:{tmp_path / 'url'}"},
            "model": {"path": str(tiny)},
            "training": {"loss": "sft", "learning_rate": 5e-3, "steps": 6, "batch": 4, **training},
        }
    )


async def published(db: Database, tokenizer: Path) -> None:
    content = content_of(tokenizer)
    taken = await publications.take_number(db, parent=None, lineage="l", step=0)
    files = {"tokenizer.json": {"bytes": content.bytes, "blake2b": content.blake2b, "pieces": list(content.pieces)}}
    await db.update_one("Publication", {"_id": taken.id}, {"$set": {"manifest": {"files": files}, "status": "current"}})


async def test_a_job_learns_from_records_and_goes_on_with_the_same_ones(
    db: Database, mongo_url: str, tiny: Path, tmp_path: Path
) -> None:
    await closed_groups(db, 3)
    await published(db, tiny / "tokenizer.json")
    recorded = {"filter": "score >= 1", "run": db.name}
    config = job(db, mongo_url, tiny, tmp_path, recorded=recorded)

    async def train(out: str, until: int = 99) -> Reports:
        reports = Reports(until)
        await asyncio.to_thread(offline.train_supervised, config, out=tmp_path / out, on_step=reports)
        return reports

    whole = await train("whole")
    chosen = json.loads((tmp_path / "whole.records.json").read_text())
    right = await db.find("Record", {"score": 1.0}, projection=["generated_tokens"])
    assert sorted(chosen) == sorted(record["_id"] for record in right)
    assert len(chosen) == 3, "the wrong half of the records is not learned from"
    assert whole.received[0].metrics["pairs"] == sum(record["generated_tokens"] for record in right)
    assert whole.losses[-1] < whole.losses[0]
    await train("parts", until=2)
    # What the run records meanwhile is not learned from.
    await db.update_many("Record", {"score": 0.0}, {"$set": {"score": 1.0}})
    await train("parts")
    assert same_files(tmp_path / "whole", tmp_path / "parts", WEIGHTS_FILE)
    await db.delete_many("DispatchedSamplingTask", {"record": chosen[0]})
    (tmp_path / "parts" / "trainer.json").unlink()
    (tmp_path / "parts.records.json").unlink()
    with pytest.raises(ConfigError, match="1 of the chosen records are not in the database any more"):
        await train("parts")


async def test_records_that_cannot_be_learned_from_are_refused(
    db: Database, mongo_url: str, tiny: Path, tmp_path: Path
) -> None:
    def refused(why: str, **recorded: Any) -> None:
        config = job(db, mongo_url, tiny, tmp_path, recorded={"run": db.name, **recorded})
        with pytest.raises(ConfigError, match=why):
            offline.train_supervised(config, out=tmp_path / "out", on_step=Reports())

    await asyncio.to_thread(refused, "There is nothing to learn from")
    await asyncio.to_thread(refused, "No scored record fulfils", filter="score >= 1")
    await closed_groups(db, 1)
    other = tmp_path / "tokenizer.json"
    other.write_text("{}")
    await published(db, other)
    await asyncio.to_thread(refused, "is another one than the run's", filter="score >= 1")


async def test_demonstrations_and_records_are_mixed(db: Database, mongo_url: str, tiny: Path, tmp_path: Path) -> None:
    await closed_groups(db, 2)
    await published(db, tiny / "tokenizer.json")
    recorded = {"filter": "score >= 1", "run": db.name, "most": 1}
    both = {"recorded": recorded, "demonstrations": str(tmp_path / "shown.jsonl"), "steps": 1}
    reports = Reports()
    config = job(db, mongo_url, tiny, tmp_path, **both)
    await asyncio.to_thread(offline.train_supervised, config, out=tmp_path / "out", on_step=reports)
    shown = tokenized(read_demonstrations(tmp_path / "shown.jsonl"), tiny)
    [record] = json.loads((tmp_path / "out.records.json").read_text())
    found = await db.find_one("Record", {"_id": record}, projection=["generated_tokens"])
    assert found is not None
    assert reports.received[0].metrics["pairs"] == shown[0].trained_tokens + found["generated_tokens"]


def test_roles_choose_the_messages_that_train(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "shown.jsonl").write_text(json.dumps(CONVERSATION))
    shown = read_demonstrations(tmp_path / "shown.jsonl")
    counts = {
        roles: tokenized(shown, tiny, None, roles)[0].trained_tokens
        for roles in (("assistant",), ("tool",), ("user",), ("assistant", "tool", "user"))
    }
    of_assistant, of_tool, of_user, of_all = counts.values()
    assert min(of_assistant, of_tool, of_user) > 0
    assert of_all == of_assistant + of_tool + of_user
    every = tokenized(shown, tiny, None, ("assistant", "tool", "user"))
    assert of_all == every[0].tokens - 1, "all tokens except the first, which has no context"
    assert sum(len(row.pairs) for row in rows(every)) == of_all
