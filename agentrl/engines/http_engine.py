"""The client of an engine behind HTTP: the embedded one, or SGLang's server by its native API.

Invariants:
- every failure is an EngineError whose class shows whether the engine is gone, busy, or refuses the call;
- a call ends within its deadline plus a short grace, and an aborted call returns what it has generated;
- an answer whose ids, log-probs and versions do not match each other is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from agentrl.config.http_token import RunToken
from agentrl.engines.interface import (
    NO_BYTES,
    CallRefusedError,
    EngineBusyError,
    EngineCall,
    EngineError,
    EngineGoneError,
    EngineRubbishError,
    Generated,
    Load,
    PauseMode,
    Sampling,
    VersionNotServedError,
    WeightsRefusedError,
)
from agentrl.engines.server_answers import decoded, raise_for
from agentrl.http import run_hosts
from agentrl.http.http_client import BodyTooLargeError, ConnectionBrokenError, HttpClient, Reply
from agentrl.images import numbered_urls
from agentrl.tokens.image_ids import is_image

ORDER_WITHIN_S = 30.0
HEALTH_WITHIN_S = 5.0
UPDATE_WITHIN_S = 600.0
FLUSH_EVERY_S = 0.05
ABORT_GRACE_S = 5.0
"""How long an aborted call has to answer."""


class FinishReason(msgspec.Struct):
    type: str
    message: str = ""


class VersionSpan(msgspec.Struct):
    """A part of an answer that one version generated, by places in the output."""

    version: str | int
    start: int
    end: int


class Meta(msgspec.Struct):
    """The part of `meta_info` that is read."""

    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    weight_version: str = ""
    weight_versions: list[VersionSpan] | None = None
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    input_token_logprobs: list[tuple[float | None, int, str | None]] | None = None


class Answer(msgspec.Struct):
    meta_info: Meta
    output_ids: list[int] | None = None


class HttpEngine:
    """Implements `Engine`. One instance per engine process; it keeps connections open until it is closed."""

    def __init__(self, url: str, token: str | RunToken, *, headers: Mapping[str, str] | None = None) -> None:
        self.url = url.rstrip("/")
        self._http = HttpClient(self.url, dict(headers or {}), way=run_hosts.way(), token=token)

    async def close(self) -> None:
        await self._http.close()

    async def generate(self, call: EngineCall) -> Generated:
        began = time.monotonic()
        with self._aborted_at_deadline(call):
            answer = await self._post("/generate", _generate_body(call), within_s=call.deadline_s + ABORT_GRACE_S)
        output = _generated(decoded(answer, Answer), time.monotonic() - began)
        _check_version(output, call.version)
        return output

    async def stream(self, call: EngineCall) -> AsyncIterator[Generated]:
        began = time.monotonic()
        body = {**_generate_body(call), "stream": True}
        try:
            with self._aborted_at_deadline(call):
                async with (
                    asyncio.timeout(call.deadline_s + ABORT_GRACE_S),
                    self._http.ask("POST", "/generate", msgspec.json.encode(body)) as reply,
                ):
                    if reply.status != 200:
                        raise_for(reply.status, await reply.read())
                    async for event in _events(reply):
                        yield _generated(decoded(event, Answer), time.monotonic() - began, ended=False)
        except TimeoutError:
            raise EngineError(f"The engine {self.url} did not end {call.rid} within {call.deadline_s:g} s.") from None
        except ConnectionBrokenError as broken:
            raise self._gone(broken) from broken
        except BodyTooLargeError as endless:
            raise self._rubbish(endless) from endless

    @contextlib.contextmanager
    def _aborted_at_deadline(self, call: EngineCall) -> Iterator[None]:
        """Aborts the call at the engine if it is still under way then."""
        aborts: list[asyncio.Task[None]] = []

        def abort() -> None:
            aborts.append(asyncio.create_task(self._abort(call.rid), name=f"abort {call.rid}"))

        timer = asyncio.get_running_loop().call_later(call.deadline_s, abort)
        try:
            yield
        finally:
            timer.cancel()
            for task in aborts:
                task.cancel()

    async def _abort(self, rid: str) -> None:
        # If the engine cannot be reached, the call itself fails with the reason.
        with contextlib.suppress(EngineError):
            await self._post("/abort_request", {"rid": _sent_rid(rid)}, within_s=ABORT_GRACE_S)

    async def score(
        self,
        ids: Sequence[int],
        *,
        deadline_s: float,
        version: int | None = None,
        images: Mapping[int, bytes] = NO_BYTES,
        vocabulary: int | None = None,
        start: int = 0,
    ) -> list[float]:
        """`vocabulary`: the number of ids of the model of an SGLang server, which reports the last id as 0. `start`:
        only tokens after this place are scored; an SGLang server may take the tokens before it from its cache."""
        unsampled = Sampling(max_new_tokens=0, temperature=0.0)
        call = EngineCall("", ids, unsampled, deadline_s=deadline_s, version=version, images=images)
        body = {**_generate_body(call), "logprob_start_len": start}
        del body["rid"]
        pairs = (
            decoded(await self._post("/generate", body, within_s=deadline_s), Answer).meta_info.input_token_logprobs
            or []
        )
        # No model predicts the tokens of an image. There SGLang scores its placeholder, and the embedded engine returns
        # 0.
        shown = [is_image(sent) for sent in ids[start + 1 :]]
        found = [
            0.0 if image else value for (value, _, _), image in zip(pairs[1:], shown, strict=False) if value is not None
        ]
        if not _is_echo([token for _, token, _ in pairs], ids[start:], vocabulary) or len(found) != len(pairs) - 1:
            raise EngineRubbishError(f"The engine {self.url} scored another sequence than the one that was sent.")
        return found

    async def abort(self, rid: str) -> None:
        await self._post("/abort_request", {"rid": _sent_rid(rid), "abort_all": not rid})

    async def pause(self, mode: PauseMode) -> None:
        await self._post("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        await self._post("/continue_generation", {})

    async def release_memory(self) -> None:
        """Releases the memory of the cache. SGLang supports this only with `--enable-memory-saver`."""
        await self._post("/release_memory_occupation", {"tags": ["kv_cache"]})

    async def restore_memory(self) -> None:
        await self._post("/resume_memory_occupation", {"tags": ["kv_cache"]})

    async def flush(self, within_s: float = ORDER_WITHIN_S) -> None:
        """SGLang only: empties the cache as soon as no call uses it. A call still uses it for a moment after its answer
        was read."""
        end = time.monotonic() + within_s
        while True:
            try:
                return await self.order("/flush_cache")
            except CallRefusedError as refused:
                if time.monotonic() > end:
                    sentence = f"The engine {self.url} did not flush its cache within {within_s:g} s: {refused.message}"
                    raise EngineBusyError(sentence) from None
            await asyncio.sleep(FLUSH_EVERY_S)

    async def update(self, path: str, version: int, *, keep_cache: bool = False) -> None:
        """Loads weights. `keep_cache`: calls in flight continue with the cache of the old weights. SGLang always does
        this for calls that are paused in place; the embedded engine always computes their cache again. To keep nothing,
        flush an SGLang server first: if a call is in its cache, it loads the weights and then reports a failure."""
        body = {"model_path": path, "weight_version": str(version), "flush_cache": not keep_cache}
        try:
            answer = await self._post("/update_weights_from_disk", body, within_s=UPDATE_WITHIN_S)
        except CallRefusedError as refused:
            raise WeightsRefusedError(refused.message) from refused
        result = decoded(answer, _Success)
        if not result.success:
            raise WeightsRefusedError(f"The engine {self.url} refuses version {version}: {result.message}.")

    async def pin(self, version: int, path: str = "") -> None:
        """The embedded engine only: holds this version beside the current one."""
        await self._post("/pin_weights", {"version": version, "model_path": path}, within_s=UPDATE_WITHIN_S)

    async def unpin(self) -> None:
        await self._post("/pin_weights", {"version": None})

    async def health(self) -> bool:
        try:
            await self._send("GET", "/health", b"", HEALTH_WITHIN_S)
        except EngineError:
            return False
        return True

    async def load(self) -> Load:
        answer = await self._send("GET", "/v1/loads", b"", ORDER_WITHIN_S)
        ranks = decoded(answer, _SglangLoads).loads
        if ranks is None:
            return decoded(answer, Load)
        model = decoded(await self._send("GET", "/model_info", b"", ORDER_WITHIN_S), _ModelInfo)
        version = int(model.weight_version) if model.weight_version.isdecimal() else None
        return Load(
            version=version,
            versions_loaded=() if version is None else (version,),
            slots=sum(rank.max_running_requests for rank in ranks),
            running=sum(rank.num_running_reqs for rank in ranks),
            waiting=sum(rank.num_waiting_reqs for rank in ranks),
            tokens_per_s=sum(rank.gen_throughput for rank in ranks),
        )

    async def order(
        self, path: str, body: Mapping[str, Any] | None = None, *, within_s: float = ORDER_WITHIN_S
    ) -> None:
        """Posts a request whose answer is only a status."""
        await self._post(path, dict(body or {}), within_s=within_s)

    async def _post(self, path: str, body: dict[str, Any], *, within_s: float = ORDER_WITHIN_S) -> bytes:
        return await self._send("POST", path, msgspec.json.encode(body), within_s)

    async def _send(self, method: str, path: str, content: bytes, within_s: float) -> bytes:
        try:
            async with asyncio.timeout(within_s), self._http.ask(method, path, content) as reply:
                status, answer = reply.status, await reply.read()
        except TimeoutError:
            raise EngineError(f"The engine {self.url} did not answer {path} within {within_s:g} s.") from None
        except ConnectionBrokenError as broken:
            raise self._gone(broken) from broken
        except BodyTooLargeError as endless:
            raise self._rubbish(endless) from endless
        if status != 200:
            raise_for(status, answer)
        return answer

    def _gone(self, broken: ConnectionBrokenError) -> EngineGoneError:
        return EngineGoneError(f"The engine {self.url} is gone: {broken}.")

    def _rubbish(self, endless: BodyTooLargeError) -> EngineRubbishError:
        return EngineRubbishError(f"The engine {self.url} gave a malformed answer: {endless}.")


class _RankLoad(msgspec.Struct):
    """One data-parallel rank of an SGLang server."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    max_running_requests: int = 0
    gen_throughput: float = 0.0


class _SglangLoads(msgspec.Struct):
    loads: list[_RankLoad] | None = None


class _ModelInfo(msgspec.Struct):
    weight_version: str = ""


class _Success(msgspec.Struct):
    success: bool = False
    message: str = ""


def _generate_body(call: EngineCall) -> dict[str, Any]:
    params = call.sampling.kept()
    if (seed := params.pop("seed")) is not None:
        params["sampling_seed"] = seed
    body = {
        "rid": _sent_rid(call.rid),
        "input_ids": list(call.ids),
        "sampling_params": params,
        "return_logprob": True,
        "stream": False,
    }
    if call.images:
        body["image_data"] = numbered_urls.written(call.images)
    return body if call.version is None else {**body, "version": call.version}


def _is_echo(scored: Sequence[int], ids: Sequence[int], vocabulary: int | None) -> bool:
    """Whether these are the ids that were sent. SGLang reports 0 for tokens of images, and for the last id of the
    vocabulary, with its own log-prob."""
    last = None if vocabulary is None else vocabulary - 1
    return list(scored) in (list(ids), [0 if sent == last or is_image(sent) else sent for sent in ids])


def _sent_rid(rid: str) -> str:
    """The rid with an end mark: SGLang aborts every call whose rid begins with the given one (c1 and c10)."""
    return f"{rid};" if rid else ""


def _check_version(made: Generated, wanted: int | None) -> None:
    """Checks the version of an answer: SGLang does not get the wanted version, and may have loaded another one
    meanwhile."""
    others = [version for version, _ in made.versions if version != wanted]
    if wanted is not None and others:
        raise VersionNotServedError(f"Version {wanted} was requested, and version {others[0]} answered.")


def _generated(answer: Answer, seconds: float, *, ended: bool = True) -> Generated:
    meta = answer.meta_info
    pairs = meta.output_token_logprobs or []
    ids = [token for _, token, _ in pairs]
    log_probs = [value for value, _, _ in pairs if value is not None]
    if len(log_probs) != len(ids) or (answer.output_ids is not None and answer.output_ids != ids):
        raise EngineRubbishError("The engine's answer has log-probs of other tokens.")
    versions = _spans(meta, len(ids))
    if sum(count for _, count in versions) != len(ids):
        raise EngineRubbishError("The engine's answer does not have a version for each token.")
    kind = meta.finish_reason.type if meta.finish_reason else "abort"
    if kind not in ("stop", "length", "abort") or (ended and meta.finish_reason is None):
        raise EngineRubbishError(f"The engine's answer has an unknown finish reason, {kind!r}.")
    return Generated(
        ids=ids,
        log_probs=log_probs,
        versions=versions,
        finish=kind,  # type: ignore[arg-type] # checked above
        cached_tokens=meta.cached_tokens,
        seconds=seconds,
    )


def _spans(meta: Meta, tokens: int) -> list[tuple[int, int]]:
    """The runs of versions. If a server names one version, that version generated all tokens."""
    try:
        if meta.weight_versions:
            return [(int(one.version), one.end - one.start) for one in meta.weight_versions if one.end > one.start]
        return [(int(meta.weight_version), tokens)] if tokens else []
    except ValueError as wrong:
        raise EngineRubbishError("The engine's answer names a version that is not a number.") from wrong


async def _events(reply: Reply) -> AsyncIterator[bytes]:
    """The events of a stream. Raises an error that the stream contains."""
    rest = b""
    async for piece in reply.pieces():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            event = line.removeprefix(b"data: ")
            if event == line or event == b"[DONE]":
                continue
            if event.startswith(b'{"error"'):
                raise_for(500, event)
            yield event
