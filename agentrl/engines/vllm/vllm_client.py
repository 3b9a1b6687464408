"""The client of a vLLM server behind a socket file.

Invariants:
- log-probs are those of the sampled distribution: the server is started with `processed_logprobs`;
- an answer whose ids and log-probs do not match each other is an error;
- a call ends when its stream is closed, so the server needs no id of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import msgspec

from agentrl.engines.forwarding_engine import Piece
from agentrl.engines.interface import EngineError, EngineGoneError, EngineRubbishError, Sampling
from agentrl.engines.server_answers import decoded, raise_for

ORDER_WITHIN_S = 30.0
UPDATE_WITHIN_S = 600.0
MODEL = "policy"
NAME = "vLLM"


class _LogProb(msgspec.Struct):
    logprob: float


class _LogProbs(msgspec.Struct):
    content: list[_LogProb] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _LogProbs | None = None
    finish_reason: str | None = None


class _Answer(msgspec.Struct):
    choices: list[_Choice]
    prompt_logprobs: list[dict[str, _LogProb] | None] | None = None


class VllmClient:
    def __init__(self, socket: str) -> None:
        transport = httpx.AsyncHTTPTransport(uds=socket, limits=httpx.Limits(max_connections=None))
        self._http = httpx.AsyncClient(transport=transport, base_url="http://vllm", timeout=None, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def healthy(self) -> bool:
        try:
            return (await self._http.get("/health", timeout=ORDER_WITHIN_S)).status_code == 200
        except httpx.HTTPError:
            return False

    async def generate(self, rid: str, ids: Sequence[int], sampling: Sampling) -> AsyncIterator[Piece]:
        """Yields the tokens of a call. Closing the iterator ends the call."""
        body = {
            "request_id": rid,
            "model": MODEL,
            "token_ids": list(ids),
            "sampling_params": _sampling_params(sampling),
            "stream": True,
        }
        try:
            async with self._http.stream("POST", "/inference/v1/generate", json=body) as reply:
                if reply.status_code != 200:
                    raise_for(reply.status_code, await reply.aread(), NAME)
                async for line in reply.aiter_lines():
                    event = line.removeprefix("data: ")
                    if event == line or event == "[DONE]":
                        continue
                    yield _piece(event.encode())
        except httpx.HTTPError as broken:
            raise EngineGoneError(f"vLLM's server is gone: {broken}.") from broken

    async def score(self, ids: Sequence[int], within_s: float) -> list[float]:
        """Log-probs at temperature 1 of all ids except the first."""
        # vLLM generates at least one token.
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        body = {"model": MODEL, "token_ids": list(ids), "sampling_params": params}
        answer = decoded(await self._post("/inference/v1/generate", body, within_s=within_s), _Answer, NAME)
        found = answer.prompt_logprobs or []
        if len(found) != len(ids):
            raise EngineRubbishError("vLLM scored another sequence than the one that was sent.")
        try:
            return [(of or {})[str(token)].logprob for token, of in zip(ids[1:], found[1:], strict=True)]
        except KeyError as other:
            raise EngineRubbishError("vLLM scored another sequence than the one that was sent.") from other

    async def reload(self, path: str) -> None:
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self._post("/collective_rpc", body, within_s=UPDATE_WITHIN_S)
        await self._post("/reset_prefix_cache", None)

    async def pause(self) -> None:
        """Pauses the server. Calls under way keep their place."""
        await self._post("/pause?mode=keep", None)

    async def resume(self) -> None:
        await self._post("/resume", None)

    async def sleep(self) -> None:
        await self._post("/sleep?level=1", None, within_s=UPDATE_WITHIN_S)

    async def wake_up(self) -> None:
        await self._post("/wake_up", None, within_s=UPDATE_WITHIN_S)

    async def _post(self, path: str, body: dict[str, Any] | None, *, within_s: float = ORDER_WITHIN_S) -> bytes:
        try:
            reply = await self._http.post(path, json=body, timeout=within_s)
        except httpx.TimeoutException as late:
            raise EngineError(f"vLLM did not answer {path} within {within_s:g} s.") from late
        except httpx.HTTPError as broken:
            raise EngineGoneError(f"vLLM's server is gone: {broken}.") from broken
        if reply.status_code != 200:
            raise_for(reply.status_code, reply.content, NAME)
        return reply.content


def _sampling_params(sampling: Sampling) -> dict[str, Any]:
    return {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "stop_token_ids": list(sampling.stop_token_ids),
        "seed": sampling.seed,
        "logprobs": 0,
        # The run itself names every token that ends a turn.
        "ignore_eos": True,
        "detokenize": False,
    }


def _piece(event: bytes) -> Piece:
    answer = decoded(event, _Answer, NAME)
    if not answer.choices:
        return Piece([], [], None)
    choice = answer.choices[0]
    ids = choice.token_ids or []
    log_probs = [entry.logprob for entry in (choice.logprobs.content or [])] if choice.logprobs else []
    if len(ids) != len(log_probs):
        raise EngineRubbishError("vLLM's answer has log-probs of other tokens.")
    return Piece(ids, log_probs, choice.finish_reason)
