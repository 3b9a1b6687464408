"""A real SGLang server on processors whose versions are adapters beside a base."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
import torch

from agentrl.config.engines import Engines
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import EngineCall, Sampling, WeightsRefusedError
from agentrl.engines.manifest import Manifest
from agentrl.engines.sglang.sglang_engine import SglangEngine
from agentrl.http.free_ports import free_port
from agentrl.store.publications import path_of
from agentrl.training import published_base, weight_files
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import LearnerSettings
from agentrl.training.lora import Adapters
from tests.engines.conftest import Weights
from tests.engines.contract import servers
from tests.engines.contract.fixtures import TOKEN, begun

# This test starts a server of its own, which keeps a core busy while it waits.
pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
    pytest.mark.sglang,
    pytest.mark.long,
]
PROMPT = [7, 8, 9, 10]
LONG = Sampling(max_new_tokens=240)


def versions(run_dir: Path, model: Path) -> list[tuple[Manifest, Learner]]:
    """Three versions of adapters; the last one differs strongly from the others."""
    base, found = published_base.publish_base(run_dir, model), []
    for number in (1, 2, 3):
        learner = Learner(model, LearnerSettings(adapters=Adapters(rank=4, alpha=8.0)))
        chance = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for name, one in learner.model.named_parameters():
                if "lora_B" in name:
                    one.copy_(torch.randn(one.shape, generator=chance) * 0.05 * number)
        prepared = weight_files.prepare(learner, number, [PROMPT], torch.float32, apart=True)
        found.append((weight_files.write_weights(run_dir, prepared, learner, shard_bytes=1 << 20, base=base), learner))
    return found


async def test_a_server_takes_versions_of_adapters_and_computes_each_call_by_one_of_them(
    first: Weights, tmp_path: Path, sglang_python: str, tolerance: float
) -> None:
    (one, by_one), (two, by_two), (three, _) = versions(tmp_path, first.path)
    (tmp_path / "token").write_text(TOKEN)
    arguments = Engines(
        kind="sglang", slots=4, python=sglang_python, args=servers.ON_PROCESSORS, load_s=servers.UP_WITHIN_S
    )
    server = SglangEngine(
        arguments, context=256, port=free_port(), token=TOKEN, token_file=tmp_path / "token",
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    client = HttpEngine(server.url, TOKEN)

    async def exact(learner: Learner, version: int) -> None:
        made = await client.generate(EngineCall("asked", PROMPT, Sampling(max_new_tokens=8), deadline_s=60))
        assert made.versions == [(version, len(made.ids))]
        expected = learner.log_probs([[*PROMPT, *made.ids]])[0][len(PROMPT) - 1 :]
        assert made.log_probs == pytest.approx(expected, abs=tolerance)
        assert (await server.load()).version == version

    try:
        await server.update(str(tmp_path / path_of(1)), 1, one)
        assert server.agreement is not None
        assert server.agreement.largest < tolerance
        await exact(by_one, 1)
        call = await begun(client, "long", PROMPT, LONG)
        await server.update(str(tmp_path / path_of(2)), 2, two)
        made = await asyncio.wait_for(call, 60)
        assert made.versions == [(1, len(made.ids))], "all tokens of a call are of the version that it began with"
        expected = by_one.log_probs([[*PROMPT, *made.ids]])[0][len(PROMPT) - 1 :]
        assert made.log_probs == pytest.approx(expected, abs=tolerance)
        await exact(by_two, 2)
        with pytest.raises(WeightsRefusedError, match="the canary differs"):
            await server.update(str(tmp_path / path_of(3)), 3, msgspec.structs.replace(three, canary=two.canary))
        await exact(by_two, 2)
        other = msgspec.structs.replace(three, base=None)
        with pytest.raises(WeightsRefusedError, match="of another base than this engine's"):
            await server.update(str(tmp_path / path_of(3)), 3, other)
    finally:
        await client.close()
        await server.close()
