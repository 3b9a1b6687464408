"""A real SGLang server on processors with models that read images, against the plain models of transformers."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import torch

from agentrl.config.engines import Engines
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import CallRefusedError, EngineCall, Sampling, WeightsRefusedError
from agentrl.engines.manifest import Manifest
from agentrl.engines.sglang.sglang_engine import SglangEngine
from agentrl.http.free_ports import free_port
from agentrl.store.publications import path_of
from agentrl.training import weight_files
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from tests.engines.contract import servers
from tests.engines.contract.fixtures import TOKEN
from tests.engines.http_requests import random_ids
from tests.images import tiny_vision
from tests.images.plain_vision import Seen

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900), pytest.mark.sglang]
GREEDY = Sampling(max_new_tokens=6, temperature=0.0)
TOWER = "visual"
PATCH = 14
"""SGLang accepts no other patch size for Qwen2.5-VL."""


@dataclass
class Versions:
    """Published weights of one model: the second differs from the first everywhere, the third from the second only in
    the vision tower."""

    directory: Path
    manifests: list[Manifest]

    def path(self, number: int) -> Path:
        return self.directory / path_of(number)


def published(directory: Path, kind: str) -> Versions:
    learner = Learner(tiny_vision.write(directory / "model", kind, patch=PATCH), LearnerSettings())
    made = []
    for number, changed in ((1, ()), (2, ("",)), (3, (TOWER,))):
        chance = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for name, one in learner.model.named_parameters():
                if any(part in name for part in changed):
                    one.add_(torch.randn(one.shape, generator=chance) * 0.1)
        prepared = weight_files.prepare(learner, number, [[7, 8, 9, 10]], torch.float32)
        made.append(weight_files.write_weights(directory, prepared, learner, shard_bytes=1 << 20))
    return Versions(directory, made)


@pytest.fixture(
    scope="module", params=[tiny_vision.KINDS[0], pytest.param(tiny_vision.KINDS[1], marks=pytest.mark.long)]
)
def versions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return published(tmp_path_factory.mktemp("vision"), request.param)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def server(versions: Versions, sglang_python: str) -> AsyncIterator[SglangEngine]:
    token_file = versions.directory / "token"
    token_file.write_text(TOKEN)
    engine = SglangEngine(
        Engines(kind="sglang", slots=4, python=sglang_python, args=servers.ON_PROCESSORS, load_s=servers.UP_WITHIN_S),
        context=256,
        port=free_port(),
        token=TOKEN,
        token_file=token_file,
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        await engine.update(str(versions.path(1)), 1, versions.manifests[0])
        yield engine
    finally:
        await engine.close()


async def test_a_server_computes_images_as_the_plain_model_and_takes_new_weights_for_them(
    versions: Versions, server: SglangEngine, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = HttpEngine(server.url, TOKEN)
    chance = random.Random(3)
    try:
        await answers_are_exact(client, Seen(versions.path(1)), chance, tolerance)
        _, two, three = versions.manifests
        assert server.agreement is not None
        assert server.agreement.largest < tolerance
        await server.update(str(versions.path(2)), 2, two)
        await answers_are_exact(client, Seen(versions.path(2)), chance, tolerance)
        # These two versions differ only in the vision tower.
        wrong = msgspec.structs.replace(three, canary=two.canary)
        with pytest.raises(WeightsRefusedError, match="the canary differs"):
            await server.update(str(versions.path(3)), 3, wrong)
        monkeypatch.setattr(server, "_way", "files")
        await server.update(str(versions.path(3)), 3, three)
        await answers_are_exact(client, Seen(versions.path(3)), chance, tolerance)
    finally:
        await client.close()


async def answers_are_exact(client: HttpEngine, seen: Seen, chance: random.Random, limit: float) -> None:
    """Check a conversation of two turns with images. Its second prompt also contains the placeholder as text."""
    begin, question = random_ids(chance, 30, seen.words), random_ids(chance, 5, seen.words)
    ids = [*begin, *seen.image(5), *question, *seen.image(9), *question]
    for turn in range(2):
        made = await client.generate(EngineCall(f"seen/c{turn}", ids, GREEDY, deadline_s=60, images=seen.pngs))
        whole = [*ids, *made.ids]
        expected = seen.log_probs(whole)[len(ids) - 1 :]
        assert made.log_probs == pytest.approx(expected, abs=limit)
        assert made.cached_tokens >= (len(begin) if turn else 0)
        ids = [*whole, seen.how.placeholder, *question, *seen.image(6), *question]
    found = await client.score(whole, deadline_s=60, images=seen.pngs)
    assert found == pytest.approx(seen.log_probs(whole), abs=limit)
    # The same prompt with another image of the same size shares no cache from the image on.
    other = [*begin, *seen.image(6), *question, *seen.image(9), *question]
    made = await client.generate(EngineCall("other", other, GREEDY, deadline_s=60, images=seen.pngs))
    assert made.log_probs == pytest.approx(seen.log_probs([*other, *made.ids])[len(other) - 1 :], abs=limit)
    assert made.cached_tokens <= len(begin) + 1
    text = [*begin, seen.how.placeholder, *question]
    made = await client.generate(EngineCall("text", text, GREEDY, deadline_s=60))
    assert made.log_probs == pytest.approx(seen.log_probs([*text, *made.ids])[len(text) - 1 :], abs=limit)
    with pytest.raises(CallRefusedError, match="came with other bytes before"):
        await client.generate(EngineCall("swapped", ids, GREEDY, deadline_s=60, images={**seen.pngs, 5: seen.pngs[6]}))
    with pytest.raises(CallRefusedError, match="did not come"):
        await client.generate(EngineCall("missing", ids, GREEDY, deadline_s=60, images={5: seen.pngs[5]}))
