"""Engines behind a forwarding unit: vLLM by its documented API, and an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from agentrl.chat.tokenizer import Tokenizer
from agentrl.config.engines import Engines
from agentrl.config.load import load_config
from agentrl.config.server_arguments import gpus_of
from agentrl.engines import manifest as manifests
from agentrl.engines.canary import Canary
from agentrl.engines.http_engine import HttpEngine
from agentrl.engines.http_server import build_app
from agentrl.engines.interface import CallRefusedError, EngineCall, Sampling, VersionNotServedError, WeightsRefusedError
from agentrl.engines.openai_engine import OpenAiEngine
from agentrl.engines.vllm.vllm_engine import VllmEngine
from agentrl.errors import ConfigError
from agentrl.http.token_server import listening
from tests.engines.conftest import TOKEN, Weights
from tests.waiting import aeventually

HERE = Path(__file__).parent
PROMPT = [7, 8, 9, 10]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(first: Weights) -> AsyncIterator[tuple[VllmEngine, HttpEngine]]:
    engine = VllmEngine(
        Engines(kind="vllm", slots=8, args=("--enable-sleep-mode",), load_s=240.0),
        context=256,
        environment={**os.environ, "PYTHONPATH": f"{HERE / 'vllm_server'}:{HERE.parents[1]}"},
    )
    await engine.update(str(first.path), 1)
    async with listening(build_app(engine, TOKEN)) as url:
        client = HttpEngine(url, TOKEN)
        yield engine, client
        await client.close()
    await engine.close()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_vllm_server_keeps_the_contract_of_engines(
    served: tuple[VllmEngine, HttpEngine], first: Weights, second: Weights, tmp_path: Path
) -> None:
    engine, client = served
    assert engine.agreement is not None
    assert engine.agreement.tokens > 0
    socket = engine._server._place / "socket"  # type: ignore[union-attr]
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    # Log-probs have the temperature of the call, and the output contains the stop token.
    made = await client.generate(
        EngineCall("a/c0", PROMPT, Sampling(max_new_tokens=12, temperature=0.7, seed=3), deadline_s=60)
    )
    expected = first.log_probs([*PROMPT, *made.ids], 0.7)[len(PROMPT) - 1 :]
    assert made.log_probs == pytest.approx(expected, abs=1e-4)
    assert (made.finish, made.versions) == ("length", [(1, 12)])
    greedy = first.greedy(PROMPT, 5)
    stopped = await client.generate(
        EngineCall(
            "a/c1", PROMPT, Sampling(max_new_tokens=12, temperature=0.0, stop_token_ids=(greedy[1],)), deadline_s=60
        )
    )
    assert (stopped.finish, stopped.ids) == ("stop", greedy[: greedy.index(greedy[1]) + 1])
    assert await client.score(PROMPT, deadline_s=60) == pytest.approx(first.log_probs(PROMPT), abs=1e-4)
    with pytest.raises(VersionNotServedError):
        await client.generate(EngineCall("a/c2", PROMPT, Sampling(), deadline_s=60, version=9))
    with pytest.raises(CallRefusedError):
        await client.generate(EngineCall("a/c3", [99_999], Sampling(), deadline_s=60))

    # An update ends a running call with its output so far, and later calls use only the new weights.
    async def stopped_by_an_update() -> bool:
        """Whether an update ended the call. On a busy machine the call may have all its tokens before the update."""
        await client.update(str(first.path), 1)
        parts = client.stream(EngineCall("b/c0", PROMPT, Sampling(max_new_tokens=240, seed=1), deadline_s=60))
        seen = [await anext(parts)]
        update = asyncio.create_task(client.update(str(second.path), 2))
        seen += [part async for part in parts]
        await update
        assert [version for version, _ in seen[-1].versions] == [1]
        return seen[-1].finish == "abort" and 0 < len(seen[-1].ids) < 240

    await aeventually(stopped_by_an_update, what="a call that ends with what it has")
    assert (await client.load()).version == 2
    now = await client.generate(EngineCall("b/c1", PROMPT, Sampling(max_new_tokens=5, temperature=0.0), deadline_s=60))
    assert (now.ids, now.versions) == (second.greedy(PROMPT, 5), [(2, 5)])
    # Weights with a different canary are refused, and the version before them still serves.
    manifest = manifests.read(first.path)
    wrong = Canary(manifest.canary.ids, [[value - 1.0 for value in one] for one in manifest.canary.log_probs])
    with pytest.raises(WeightsRefusedError, match="canary differs"):
        await engine.update(str(first.path), 3, manifests.Manifest(manifest.files, wrong))
    again = await client.generate(
        EngineCall("b/c2", PROMPT, Sampling(max_new_tokens=5, temperature=0.0), deadline_s=60)
    )
    assert (again.ids, again.versions) == (second.greedy(PROMPT, 5), [(2, 5)])
    await client.release_memory()
    await client.restore_memory()
    assert (await client.generate(EngineCall("b/c3", PROMPT, Sampling(max_new_tokens=1), deadline_s=60))).versions == [
        (2, 1)
    ]


async def test_an_openai_server_answers_by_text(first: Weights) -> None:
    tokenizer = Tokenizer(first.path)
    asked = []

    async def completions(request: Request) -> Response:
        asked.append((await request.json(), request.headers.get("authorization")))
        return JSONResponse({"choices": [{"text": "3 pears", "finish_reason": "stop"}]})

    app = Starlette(routes=[Route("/v1/completions", completions, methods=["POST"])])
    async with listening(app) as url:
        os.environ["AGENTRL_TEST_KEY"] = "secret"
        engines = Engines.model_validate(
            {"kind": "openai", "url": f"{url}/v1", "model": "theirs", "token": "env:AGENTRL_TEST_KEY"}
        )
        engine = OpenAiEngine(engines, context=256)
        await engine.update(str(first.path), 4)
        stop = tokenizer.control("<|end|>")
        prompt = [*tokenizer.encode("What do"), stop]
        made = await engine.generate(EngineCall("r", prompt, Sampling(stop_token_ids=(stop,), seed=5), deadline_s=60))
        with pytest.raises(CallRefusedError, match="no log-probs"):
            await engine.score(prompt, deadline_s=60)
        await engine.close()
    assert (made.ids, made.finish) == ([*tokenizer.encode("3 pears"), stop], "stop")
    assert made.versions == [(4, len(made.ids))]
    ((body, key),) = asked
    assert (body["model"], body["prompt"], body["stop"]) == ("theirs", "What do<|end|>", ["<|end|>"])
    assert key == "Bearer secret"


@pytest.mark.parametrize(
    ("engines", "sentence"),
    [
        ("{kind: openai, url: 'https://h/v1'}", "nothing can be trained on them; set training.frozen: true"),
        ("{kind: openai}", "needs the address of a server"),
        ("{kind: vllm, url: 'https://h/v1'}", "are for kind: openai"),
        (
            "{kind: vllm, args: [--port=1]}",
            "--port is not an argument that a run file may give engines of the kind vllm",
        ),
    ],
)
def test_what_an_engine_cannot_do_is_refused(tmp_path: Path, engines: str, sentence: str) -> None:
    (tmp_path / "run.yaml").write_text(
        f"name: r\nmodel: {{build: tiny}}\nenvironments: {{a: {{dataset: d.jsonl}}}}\nengines: {engines}\n"
    )
    with pytest.raises(ConfigError, match=sentence):
        load_config(tmp_path / "run.yaml")


def test_gpus_of_a_vllm_server_follow_from_its_arguments() -> None:
    assert gpus_of("vllm", ["--tensor-parallel-size", "2", "--pipeline-parallel-size=2"]) == 4
    assert gpus_of("openai", []) == 0
