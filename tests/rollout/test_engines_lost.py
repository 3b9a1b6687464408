"""Two engine processes under sixty-four calls, of which one is killed, while weights are replaced."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from agentrl.config.data_plane import Rollout
from agentrl.engines import manifest as manifests
from agentrl.engines.canary import Canary
from agentrl.engines.embedded.decoder import Model
from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import EngineGoneError
from agentrl.store import service_registry
from agentrl.store.documents import Record
from agentrl.tokens.binary_format import unpack_floats, unpack_ids
from tests.engines import unverified
from tests.rollout.conftest import TEXTS, TOKEN, Stage, configuration
from tests.waiting import aeventually

ROOT = Path(__file__).parents[2]
FILES = ("config.json", "model.safetensors", "tokenizer.json")
CALLS = 64
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def published(run_dir: Path, version: int) -> dict[str, Any]:
    """Weights as a trainer leaves them, and their document."""
    directory = run_dir / f"weights/v{version:06d}"
    build_tiny(directory, TEXTS, seed=version, max_position_embeddings=1024, initializer_range=0.1)
    ids = [[5, 6, 7, 8, 9]]
    log_probs = [exact(unverified.load(directory, version), one) for one in ids]
    manifest = manifests.describe(directory, FILES, Canary(ids, log_probs))
    return {
        "_id": version,
        "status": "announced",
        "path": f"weights/{directory.name}",
        "manifest": msgspec.to_builtins(manifest),
    }


@torch.inference_mode()
def exact(model: Model, ids: list[int]) -> list[float]:
    return model.scores([ids])[0]


@contextlib.contextmanager
def engine_process(name: str, run_dir: Path, mongo_url: str, database: str) -> Any:
    environment = {**os.environ, "MONGO_URL": mongo_url, "MONGO_DATABASE": database, "TOKEN": TOKEN}
    with (run_dir / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.rollout.engine_process", name, str(run_dir)],
            env={**environment, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
async def engines(stage: Stage, mongo_url: str, tmp_path: Path) -> AsyncIterator[dict[str, subprocess.Popen[bytes]]]:
    await stage.db.insert_many("Publication", [published(tmp_path, 1)])
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(engine_process(name, tmp_path, mongo_url, stage.db.name))
            for name in ("engine-0.1", "engine-1.1")
        }

        async def both_serve() -> bool:
            return len(await service_registry.alive(stage.db, "engine")) == 2

        await aeventually(both_serve, within_s=400)
        yield running


async def running_calls(stage: Stage) -> set[str]:
    """Engines that have calls under way."""
    sent = await stage.db.find("DispatchedSamplingTask", {"status": "sent"})
    return {call["engine"] for call in sent}


async def test_one_of_two_engines_is_killed_under_sixty_four_calls(
    stage: Stage, engines: dict[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    stage.config = configuration(
        environments={"shop": {"dataset": "none.jsonl", "parser": "minicpm", "agent": "single_turn_agent"}}
    )
    for _ in range(CALLS // 16):
        await stage.task(n=16, agent_name="single_turn_agent", sampling={"max_tokens_per_call": 150, "context": 256})
    second = published(tmp_path, 2)
    patient = Rollout(call_s=200.0, episode_s=400.0)
    # Paused engines end no call, however fast they are and however slow the machine is.
    await at_all_engines(stage, lambda engine: engine.pause("in_place"))
    async with stage.sampler(concurrency=CALLS, settings=patient):
        await aeventually(lambda: both_are_called(stage), within_s=90)
        await at_all_engines(stage, HttpEngine.resume)
        await at_all_engines(stage, lambda engine: engine.pause("in_place"))
        # All running calls end with the tokens that they have. The newer weights continue from these tokens.
        await stage.db.insert_many("Publication", [second])
        await at_all_engines(stage, lambda engine: engine.abort(""))
        await aeventually(lambda: both_are_called(stage), within_s=90)
        engines["engine-0.1"].kill()
        engines["engine-0.1"].wait()
        await at_all_engines(stage, HttpEngine.resume)
        records = await stage.ended(count=CALLS, within_s=400)

    assert len(records) == CALLS
    lost_episodes = [(record.id, record.error) for record in records if record.outcome_class == "infrastructure"]
    assert not lost_episodes
    assert not await stage.open_ends()
    calls = await stage.calls()
    assert len({call.id for call in calls}) == len(calls)
    lost = [call for call in calls if call.engine == "engine-0.1" and call.status == "failed"]
    assert lost, "the killed engine had running calls"
    assert all("is gone" in call.error for call in lost)
    # A record that lost a call at the dead engine never calls it again.
    assert len({call.record for call in lost}) == len(lost)
    last = {call.record: call for call in calls}
    assert {last[call.record].engine for call in lost} == {"engine-1.1"}
    models = {version: unverified.load(tmp_path / f"weights/v{version:06d}", version) for version in (1, 2)}
    for record in records:
        check_tokens(record, [call for call in calls if call.record == record.id], models)


async def at_all_engines(stage: Stage, act: Callable[[HttpEngine], Awaitable[object]]) -> None:
    """Apply `act` to all engines that answer."""
    for service in await service_registry.alive(stage.db, "engine"):
        client = HttpEngine(service.url, TOKEN)
        with contextlib.suppress(EngineGoneError):
            await act(client)
        await client.close()


async def both_are_called(stage: Stage) -> bool:
    return await running_calls(stage) == {"engine-0.1", "engine-1.1"}


def check_tokens(record: Record, calls: list[Any], models: dict[int, Model]) -> None:
    """Check that each kept token was generated by its stored version, from all tokens before it."""
    whole: dict[str, list[int]] = {"": []}
    ended = [call for call in calls if call.status == "done"]
    assert len(ended) == 1, f"{record.id} ends once"
    for call in sorted(calls, key=lambda call: call.index):
        prompt = [*whole[call.base][: call.base_length], *unpack_ids(call.prompt)]
        output, found, at = unpack_ids(call.output), unpack_floats(call.log_probs), 0
        whole[call.id] = [*prompt, *output]
        assert sum(count for _, count in call.versions) == len(output)
        for version, count in call.versions:
            begin = len(prompt) - 1 + at
            expected = exact(models[version], whole[call.id])[begin : begin + count]
            assert list(found[at : at + count]) == pytest.approx(expected, abs=1e-4)
            at += count
    made = [version for call in calls for version, _ in call.versions]
    assert (record.oldest_version, record.newest_version) == (min(made), max(made))
