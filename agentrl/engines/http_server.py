"""The HTTP server in front of an engine within the process, with SGLang's native API: what samplers call.

Invariants:
- requests without the run's token get no information;
- the call of a caller that disconnects is aborted;
- an aborted call answers 200 with what it has generated;
- the event loop only moves bytes; the engine computes elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from agentrl.config.http_token import RunToken
from agentrl.engines.interface import (
    CallRefusedError,
    EngineBusyError,
    EngineCall,
    EngineError,
    Generated,
    PauseMode,
    Sampling,
    ServableEngine,
    VersionNotServedError,
    WeightsRefusedError,
)
from agentrl.http import kept_traces
from agentrl.http.token_server import Act, Application, Guard, RequestError, Route, body_of
from agentrl.images import numbered_urls
from agentrl.images.processing import ImageError
from agentrl.policies.sampling_rule import SamplingRule
from agentrl.tracing import spans

log = logging.getLogger("engine")
LONGEST_CALL_S = 3600.0
"""Callers have their own, earlier deadline, and abort."""
MOST_CALL_BYTES = 32 << 20
"""This large, because images come with their call."""
Decode = Callable[[list[int]], str]


class SamplingParams(SamplingRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The supported sampling parameters of SGLang. Unknown parameters are refused, not ignored."""

    max_new_tokens: int = 128
    stop_token_ids: list[int] | None = None
    sampling_seed: int | None = None


class GenerateBody(msgspec.Struct, kw_only=True):
    input_ids: list[int]
    rid: str = ""
    sampling_params: SamplingParams = msgspec.field(default_factory=SamplingParams)
    return_logprob: bool = False
    logprob_start_len: int = -1
    """0 returns the log-probs of the prompt."""
    stream: bool = False
    version: int | None = None
    """The version that must answer; None is the current one."""
    image_data: list[str] = []
    """The images that `input_ids` show, in the size that the model sees."""


class AbortBody(msgspec.Struct, kw_only=True):
    rid: str = ""
    abort_all: bool = False


class PauseBody(msgspec.Struct, kw_only=True):
    mode: PauseMode = "abort"


class UpdateBody(msgspec.Struct, kw_only=True):
    model_path: str
    weight_version: str


class PinBody(msgspec.Struct, kw_only=True):
    version: int | None
    """None unpins."""
    model_path: str = ""


def build_app(
    engine: ServableEngine, token: str | RunToken, *, decode: Decode | None = None, model_path: str = ""
) -> Application:
    """`decode` produces the `text` of answers; without it answers have ids only."""
    handlers = _Handlers(engine, decode, model_path)
    table = (
        Route("/generate", "POST", handlers.generate),
        Route("/abort_request", "POST", handlers.abort),
        Route("/pause_generation", "POST", handlers.pause),
        Route("/continue_generation", "POST", _order(engine.resume)),
        Route("/release_memory_occupation", "POST", _order(engine.release_memory)),
        Route("/resume_memory_occupation", "POST", _order(engine.restore_memory)),
        Route("/update_weights_from_disk", "POST", handlers.update),
        Route("/pin_weights", "POST", handlers.pin),
        Route("/health", "GET", handlers.health),
        Route("/model_info", "GET", handlers.model_info),
        Route("/server_info", "GET", handlers.loads),
        Route("/v1/loads", "GET", handlers.loads),
        kept_traces.ROUTE,
    )
    return Application(table, Guard("This engine", log, _refusal, token=token))


class _Handlers:
    """One method per path."""

    def __init__(self, engine: ServableEngine, decode: Decode | None, model_path: str) -> None:
        self._engine = engine
        self._decode = decode
        self._model_path = model_path

    async def generate(self, request: Request) -> Response:
        body = await body_of(request, GenerateBody, most_bytes=MOST_CALL_BYTES)
        rid = body.rid or uuid.uuid4().hex
        if body.stream:
            return await self._stream(rid, body)
        if body.logprob_start_len == 0 and body.sampling_params.max_new_tokens == 0:
            return await self._score(rid, body)
        with spans.span("generate", kind="server", agentrl__call=rid.rstrip(";")) as span:
            answer = await self._generate(rid, body, request)
            span.set(gen_ai__usage__input_tokens=len(body.input_ids))
            return answer

    async def _generate(self, rid: str, body: GenerateBody, request: Request) -> Response:
        call = asyncio.create_task(self._engine.generate(self._call(rid, body)), name=f"generate {rid}")
        gone = asyncio.create_task(_disconnected(request), name=f"caller of {rid}")
        try:
            await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise ClientDisconnect
            return _json(self._answer(rid, body, call.result()))
        finally:
            call.cancel()
            gone.cancel()

    async def abort(self, request: Request) -> Response:
        body = await body_of(request, AbortBody)
        if body.rid or body.abort_all:
            await self._engine.abort("" if body.abort_all else body.rid)
        return _json({"success": True})

    async def pause(self, request: Request) -> Response:
        await self._engine.pause((await body_of(request, PauseBody)).mode)
        return _json({"success": True})

    async def update(self, request: Request) -> Response:
        body = await body_of(request, UpdateBody)
        if not body.weight_version.isdecimal():
            raise CallRefusedError(f"weight_version must be a whole number, not {body.weight_version!r}.")
        await self._engine.update(body.model_path, int(body.weight_version))
        self._model_path = body.model_path
        return _json({"success": True, "message": "Succeeded to update model weights."})

    async def pin(self, request: Request) -> Response:
        body = await body_of(request, PinBody)
        if body.version is None:
            await self._engine.unpin()
        else:
            await self._engine.pin(body.version, body.model_path)
        return _json({"success": True})

    async def health(self, request: Request) -> Response:
        if await self._engine.health():
            return Response(status_code=200)
        return _failure(503, "The engine does not run.")

    async def model_info(self, request: Request) -> Response:
        load = await self._engine.load()
        version = "" if load.version is None else str(load.version)
        return _json({"model_path": self._model_path, "weight_version": version, "is_generation": True})

    async def loads(self, request: Request) -> Response:
        return _json(msgspec.to_builtins(await self._engine.load()))

    def _call(self, rid: str, body: GenerateBody) -> EngineCall:
        return EngineCall(
            rid,
            body.input_ids,
            _sampling(body.sampling_params),
            deadline_s=LONGEST_CALL_S,
            version=body.version,
            images=_images(body),
        )

    async def _stream(self, rid: str, body: GenerateBody) -> Response:
        """Each event has the whole output so far, as in SGLang."""
        news: asyncio.Queue[Generated | None] = asyncio.Queue()
        call = asyncio.create_task(self._engine.generate(self._call(rid, body), news.put_nowait), name=f"stream {rid}")
        call.add_done_callback(lambda _: news.put_nowait(None))

        async def events() -> AsyncIterator[bytes]:
            try:
                while (sofar := await news.get()) is not None:
                    while not news.empty() and (newer := news.get_nowait()) is not None:
                        sofar = newer  # a slow reader skips older events
                    if not call.done():
                        yield _event(self._answer(rid, body, sofar, ended=False))
                    else:
                        break
                try:
                    yield _event(self._answer(rid, body, await call))
                except EngineError as failed:
                    yield _event({"error": {"message": failed.message}})
                yield b"data: [DONE]\n\n"
            finally:
                call.cancel()

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _score(self, rid: str, body: GenerateBody) -> Response:
        found = await self._engine.score(
            body.input_ids, deadline_s=LONGEST_CALL_S, version=body.version, images=_images(body)
        )
        pairs: list[list[float | None]] = [[None, body.input_ids[0], None]] if body.input_ids else []
        pairs += [[value, token, None] for value, token in zip(found, body.input_ids[1:], strict=True)]
        meta = {
            "id": rid,
            "finish_reason": {"type": "length", "length": 0},
            "prompt_tokens": len(body.input_ids),
            "completion_tokens": 0,
            "input_token_logprobs": pairs,
            "output_token_logprobs": [],
        }
        return _json({"text": "", "output_ids": [], "meta_info": meta})

    def _answer(self, rid: str, body: GenerateBody, made: Generated, *, ended: bool = True) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": rid,
            "finish_reason": _finish_reason(made) if ended else None,
            "prompt_tokens": len(body.input_ids),
            "completion_tokens": len(made.ids),
            "cached_tokens": made.cached_tokens,
            "weight_versions": weight_versions(made.versions),
            "e2e_latency": made.seconds,
        }
        if body.return_logprob:
            pairs = zip(made.log_probs, made.ids, strict=True)
            meta["output_token_logprobs"] = [(value, token, None) for value, token in pairs]
        text = self._decode(made.ids) if self._decode is not None else ""
        return {"text": text, "output_ids": made.ids, "meta_info": meta}


def weight_versions(runs: Sequence[tuple[int, int]]) -> list[dict[str, str | int]]:
    """Runs of (version, tokens) in the form of SGLang: version, and places in the output, `end` exclusive."""
    spans: list[dict[str, str | int]] = []
    at = 0
    for version, count in runs:
        spans.append({"version": str(version), "start": at, "end": at + count})
        at += count
    return spans


def _order(act: Callable[[], Awaitable[None]]) -> Act:
    """A request without arguments."""

    async def answer(request: Request) -> Response:
        await act()
        return _json({"success": True})

    return answer


def _images(body: GenerateBody) -> dict[int, bytes]:
    try:
        return numbered_urls.read(body.image_data)
    except ImageError as wrong:
        raise CallRefusedError(wrong.message) from None


def _sampling(params: SamplingParams) -> Sampling:
    return Sampling(
        **{name: getattr(params, name) for name in SamplingRule.__struct_fields__},
        max_new_tokens=params.max_new_tokens,
        stop_token_ids=tuple(params.stop_token_ids or ()),
        seed=params.sampling_seed,
    )


def _finish_reason(made: Generated) -> dict[str, Any]:
    match made.finish:
        case "stop":
            return {"type": "stop", "matched": made.ids[-1]}
        case "length":
            return {"type": "length", "length": len(made.ids)}
        case _:
            return {"type": "abort", "message": "aborted"}


def _refusal(failed: Exception) -> Response | None:
    match failed:
        case RequestError():
            return _failure(failed.status, failed.message)
        case EngineError():
            return _failure(_status_of(failed), failed.message)
        case _:
            return None


def _status_of(failed: EngineError) -> int:
    match failed:
        case VersionNotServedError():
            return 409
        case CallRefusedError() | WeightsRefusedError():
            return 400
        case EngineBusyError():
            return 503
        case _:
            return 500


async def _disconnected(request: Request) -> None:
    """Returns when the caller has disconnected. Call it after the body was read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def _failure(status: int, sentence: str) -> Response:
    body = msgspec.json.encode({"error": {"message": sentence}})
    return Response(body, status_code=status, media_type="application/json")
