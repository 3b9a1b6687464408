"""An engine with scripted answers behind the real HTTP API, and other parts that a stage needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from agentrl.chat.template import Template


@dataclass
class Prompt:
    """One request."""

    rid: str
    text: str
    ids: list[int]
    params: dict[str, Any]

    @property
    def record(self) -> str:
        return self.rid.rpartition("/")[0]

    @property
    def answers(self) -> list[str]:
        """The messages of the environment up to now; the query is the first."""
        parts = self.text.replace("<|tool|>", "<|user|>").split("<|user|>")[1:]
        return [part.partition("<|end|>")[0] for part in parts]


@dataclass
class ScriptedAnswer:
    """An answer that also says how it ends or fails."""

    text: str = ""
    finish: str = "stop"
    status: int = 200
    change: Callable[[dict[str, Any]], None] = lambda answer: None


@dataclass
class Engine:
    """`says` returns the answer to each request. A waiting request that is aborted gets the answer of `partly`."""

    template: Template
    says: Callable[[Prompt], Any]
    version: int = 1
    prompts: list[Prompt] = field(default_factory=list)
    aborted: set[str] = field(default_factory=set)
    partly: str = ""

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/generate", self._generate, methods=["POST"]),
                Route("/abort_request", self._abort, methods=["POST"]),
            ]
        )

    async def _generate(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body())
        prompt = Prompt(
            body["rid"], self.template.tokenizer.decode(body["input_ids"]), body["input_ids"], body["sampling_params"]
        )
        self.prompts.append(prompt)
        reply = self.says(prompt)
        if asyncio.iscoroutine(reply):
            reply = await self._unless_aborted(request, prompt.rid, reply)
        spoken = reply if isinstance(reply, ScriptedAnswer) else ScriptedAnswer(reply)
        if spoken.status != 200:
            return Response(b'{"error": {"message": "told so"}}', status_code=spoken.status)
        answer = self._answer(prompt, spoken)
        spoken.change(answer)
        return Response(msgspec.json.encode(answer), media_type="application/json")

    async def _unless_aborted(self, request: Request, rid: str, reply: Any) -> Any:
        saying = asyncio.ensure_future(reply)
        while not saying.done():
            if rid in self.aborted or await request.is_disconnected():
                saying.cancel()
                return ScriptedAnswer(self.partly, finish="abort")
            await asyncio.wait([saying], timeout=0.01)
        return saying.result()

    def _answer(self, prompt: Prompt, spoken: ScriptedAnswer) -> dict[str, Any]:
        ended = spoken.finish == "stop"
        ids = self.template.assistant(spoken.text) if ended else self.template.tokenizer.encode(spoken.text)
        most = prompt.params["max_new_tokens"]
        finish = "length" if len(ids) > most and spoken.finish == "stop" else spoken.finish
        ids = ids[:most]
        return {
            "output_ids": ids,
            "meta_info": {
                "finish_reason": {"type": finish},
                "weight_version": str(self.version),
                "output_token_logprobs": [[-0.5, token, None] for token in ids],
            },
        }

    async def _abort(self, request: Request) -> Response:
        self.aborted.add(msgspec.json.decode(await request.body())["rid"])
        return Response(b"{}")
