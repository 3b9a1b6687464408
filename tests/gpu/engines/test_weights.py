"""An SGLang server on a GPU gets weights in each of the ways, and does not fall back to another."""

from __future__ import annotations

import pytest

from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.interface import EngineCall, Sampling
from agentrl.engines.sglang.sglang_engine import SglangEngine
from tests.engines.conftest import Weights
from tests.engines.contract.fixtures import client  # noqa: F401 # a fixture is found by its name

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]


@pytest.mark.parametrize("way", ["files", "group", "ipc"])
async def test_weights_are_loaded_in_the_requested_way(
    server: SglangEngine,
    client: HttpEngine,  # noqa: F811
    first: Weights,
    second: Weights,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    monkeypatch.setattr(server, "_way", way)
    for weights in (first, second):
        await server.update(str(weights.path), weights.version)
        made = await client.generate(EngineCall("asked", [7, 8, 9], Sampling(max_new_tokens=5), deadline_s=60))
        assert {version for version, _ in made.versions} == {weights.version}
    assert server._way == way, "it fell back to files"
