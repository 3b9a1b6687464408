"""A small server with the part of vLLM's documented HTTP API that agentrl uses, over the embedded engine.

vLLM itself cannot be installed where the tests run. This shows that agentrl follows the documented API, not that a real
server does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.interface import EngineCall, EngineError, Generated, Sampling
from tests.engines import unverified

KNOWN = {
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "stop_token_ids", "seed", "logprobs", "prompt_logprobs", "ignore_eos", "detokenize"),
}
"""Of vLLM's SamplingParams."""


class Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.engine = EmbeddedEngine(slots=options.max_num_seqs, context=options.max_model_len)
        self.version = 0
        self.calls = 0

    async def load(self, path: str) -> None:
        self.version += 1
        await unverified.serve(self.engine, Path(path), self.version)

    async def generate(self, request: Request) -> Response:
        body = await request.json()
        params: dict[str, Any] = body["sampling_params"]
        if body["model"] != self.options.served_model_name or set(params) - KNOWN or params["max_tokens"] < 1:
            return JSONResponse({"error": {"message": "unknown model or parameter"}}, 400)
        self.calls += 1
        if not body.get("stream"):
            scores = await self.engine.score(body["token_ids"], deadline_s=60)
            prompt: list[Any] = [
                None,
                *(
                    {str(token): {"logprob": one, "rank": 1, "decoded_token": None}}
                    for token, one in zip(body["token_ids"][1:], scores, strict=True)
                ),
            ]
            choice = {"index": 0, "token_ids": [0], "finish_reason": "length", "logprobs": None}
            return JSONResponse({"request_id": "r", "choices": [choice], "prompt_logprobs": prompt})
        return StreamingResponse(
            self._events(f"{body['request_id']}-{self.calls}", body, params), media_type="text/event-stream"
        )

    async def _events(self, rid: str, body: dict[str, Any], params: dict[str, Any]) -> AsyncIterator[str]:
        sampling = Sampling(
            max_new_tokens=params["max_tokens"],
            stop_token_ids=tuple(params["stop_token_ids"]),
            seed=params["seed"],
            temperature=params["temperature"],
            top_p=params["top_p"],
        )
        done = 0
        async for sofar in self.engine.stream(EngineCall(rid, body["token_ids"], sampling, deadline_s=600)):
            stops = bool(sofar.ids) and sofar.ids[-1] in sampling.stop_token_ids
            length = len(sofar.ids) >= sampling.max_new_tokens
            finish = "stop" if stops else "length" if length else None
            if len(sofar.ids) == done:
                continue
            yield f"data: {json.dumps(chunk(rid, sofar, done, finish))}\n\n"
            done = len(sofar.ids)
        yield "data: [DONE]\n\n"

    async def rpc(self, request: Request) -> Response:
        body = await request.json()
        if body["method"] != "reload_weights":
            return JSONResponse({"error": {"message": "unknown method"}}, 400)
        try:
            await self.load(body["kwargs"]["weights_path"])
        except EngineError as refused:
            return JSONResponse({"error": {"message": refused.message}}, 500)
        return JSONResponse({"results": [None]})

    async def pause(self, request: Request) -> Response:
        assert request.query_params["mode"] == "keep"
        await self.engine.pause("in_place")
        return JSONResponse({"status": "paused"})

    async def resume(self, request: Request) -> Response:
        await self.engine.resume()
        return JSONResponse({"status": "resumed"})

    async def sleep(self, request: Request) -> Response:
        await self.engine.release_memory()
        return Response(status_code=200)

    async def wake_up(self, request: Request) -> Response:
        await self.engine.restore_memory()
        return Response(status_code=200)


def chunk(rid: str, sofar: Generated, done: int, finish: str | None) -> dict[str, Any]:
    content = [
        {"token": f"token_id:{token}", "logprob": value, "bytes": None, "top_logprobs": []}
        for token, value in zip(sofar.ids[done:], sofar.log_probs[done:], strict=True)
    ]
    return {
        "request_id": rid,
        "choices": [
            {"index": 0, "logprobs": {"content": content}, "finish_reason": finish, "token_ids": sofar.ids[done:]}
        ],
    }


async def nothing(request: Request) -> Response:
    return Response(status_code=200)


async def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--model", "--served-model-name", "--uds", "--logprobs-mode", "--max-logprobs", "--generation-config"):
        parser.add_argument(name, required=True)
    parser.add_argument("--max-model-len", type=int, required=True)
    parser.add_argument("--max-num-seqs", type=int, required=True)
    parser.add_argument("--enable-sleep-mode", action="store_true")
    options = parser.parse_args()
    assert options.logprobs_mode == "processed_logprobs"
    torch.set_num_threads(1)
    server = Server(options)
    server.engine.start()
    await server.load(options.model)
    app = Starlette(
        routes=[
            Route("/health", nothing),
            Route("/inference/v1/generate", server.generate, methods=["POST"]),
            Route("/collective_rpc", server.rpc, methods=["POST"]),
            Route("/reset_prefix_cache", nothing, methods=["POST"]),
            Route("/pause", server.pause, methods=["POST"]),
            Route("/resume", server.resume, methods=["POST"]),
            Route("/sleep", server.sleep, methods=["POST"]),
            Route("/wake_up", server.wake_up, methods=["POST"]),
        ]
    )
    await uvicorn.Server(uvicorn.Config(app, uds=options.uds, log_level="warning")).serve()


if __name__ == "__main__":
    asyncio.run(main())
