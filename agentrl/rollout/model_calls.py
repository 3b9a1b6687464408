"""One logical model call: the tokens of one turn of the assistant, even if engines fail meanwhile.

Invariants: every request to an engine is a DispatchedSamplingTask of its own; the tokens of an aborted request are kept
and continued, never generated again; a lost request is sent again, to another engine if there is one; an impossible
answer is not kept. A call fails after `MOST_FRUITLESS` requests in a row without a token, or when no engine takes it in
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from agentrl.engines.interface import (
    NO_BYTES,
    CallRefusedError,
    Engine,
    EngineBusyError,
    EngineError,
    EngineGoneError,
    EngineRubbishError,
    Finish,
    Generated,
    Sampling,
    VersionNotServedError,
)
from agentrl.engines.routing import Candidate
from agentrl.policies.outcomes import AROUND_A_DEADLINE_S, Outcome
from agentrl.policies.sampling_rule import SamplingRule
from agentrl.rollout.episode_clock import EpisodeClock
from agentrl.rollout.episode_errors import EndedError, HandedOverError
from agentrl.rollout.episode_recorder import Recorder
from agentrl.rollout.service_directory import ServiceDirectory
from agentrl.tracing import spans

MOST_FRUITLESS = 4
"""Requests in a row that gave no token."""
ENGINE_WITHIN_S = 120.0
"""How long a call waits until any engine takes it: engines that start must first load weights."""
LOOK_EVERY_S = 0.2
PAUSE_S = 0.2
ABORT_WITHIN_S = 2.0
LOG_PROB_SLACK = 1e-3
"""Rounding may lift the logarithm of a probability of nearly 1 above 0."""

Wait = Callable[[str, str, float], AbstractContextManager[None]]
"""Arguments: what the call waits for, on which unit, and the longest time; `agentrl why` shows them."""


class ModelAnswer(NamedTuple):
    """The output of a logical call."""

    ids: list[int]
    finish: Finish


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A logical call."""

    turn: int
    prompt: list[int]
    rule: SamplingRule
    most_tokens: int
    stop_ids: tuple[int, ...]
    seed: Callable[[int, int], int]
    """The seed, from the index of the request and the number of tokens kept so far."""
    version: int | None = None
    images: Mapping[int, bytes] = field(default_factory=lambda: NO_BYTES)
    """The images that the prompt shows."""
    branch: str = ""
    """The branch of the episode; empty for the agent itself."""


class ModelCalls:
    """The model calls of one episode."""

    def __init__(
        self,
        directory: ServiceDirectory,
        recorder: Recorder,
        *,
        call_s: float,
        vocabulary: int,
        wait: Wait,
        clock: EpisodeClock,
    ) -> None:
        """Time spent waiting for an engine, or lost to a failed one, does not count on the episode's `clock`."""
        self._directory = directory
        self._recorder = recorder
        self._call_s = call_s
        self._vocabulary = vocabulary
        self._wait = wait
        self._clock = clock
        self._leaving = asyncio.Event()
        self._under_way: dict[str, Engine] = {}
        """By the id of the call."""
        self._failed_at: set[str] = set()
        """Engines that failed the present call; another engine gets it, if there is one."""

    async def make(self, wanted: ModelRequest) -> ModelAnswer:
        """Makes the call, starting from what is stored of this turn."""
        known = self._recorder.calls_of(wanted.turn)
        if known and known[0].prompt != wanted.prompt:
            if wanted.turn < self._recorder.trunk_turns:
                raise EndedError(
                    Outcome.NOT_REPRODUCIBLE, f"the loop asks another prompt in turn {wanted.turn} than the base did"
                )
            raise EndedError(Outcome.LOOP_FAILED, "the loop asks another prompt than before it was handed over")
        kept = [token for call in known for token in call.output]
        if known and known[-1].done:
            return ModelAnswer(kept, _finish(known[-1].document.finish_reason))
        failures: list[_FruitlessError] = []
        self._failed_at.clear()
        while len(failures) < MOST_FRUITLESS:
            room = wanted.most_tokens - len(kept)
            if room <= 0:
                return ModelAnswer(kept, "length")
            try:
                made = await self._request(wanted, kept, room)
            except _FruitlessError as failed:
                failures.append(failed)
                continue
            kept += made.ids
            if made.finish != "abort":
                return ModelAnswer(kept, made.finish)
            self._raise_if_leaving()
            known = self._recorder.calls_of(wanted.turn)
            if made.ids:
                failures.clear()
            else:
                failures.append(_FruitlessError(Outcome.ENGINE_FAILED, "the engine aborts the call again and again"))
        raise EndedError(failures[-1].outcome, failures[-1].error)

    async def leave(self) -> None:
        """Abort what is under way; `make` then raises HandedOverError, with the tokens kept."""
        self._leaving.set()
        for rid, engine in list(self._under_way.items()):
            # An engine that does not take the abort is dead, and that ends the request.
            with contextlib.suppress(EngineError, TimeoutError):
                async with asyncio.timeout(ABORT_WITHIN_S):
                    await engine.abort(rid)

    # ---- one request ----

    async def _request(self, wanted: ModelRequest, kept: Sequence[int], room: int) -> Generated:
        """Raises _FruitlessError if the request gave no token and may be made again."""
        engine = await self._engine(wanted.version)
        prompt = [*wanted.prompt, *kept]
        sampling = Sampling(
            **msgspec.structs.asdict(wanted.rule),
            max_new_tokens=room,
            stop_token_ids=wanted.stop_ids,
            seed=wanted.seed(self._recorder.next_index, len(kept)),
        )
        call = self._recorder.sent(wanted.turn, prompt, sampling, engine.name, wanted.branch)
        client = self._directory.client(engine)
        self._under_way[call.id] = client
        sent_at = time.monotonic()
        self._directory.sent(engine)
        try:
            late_after_s = self._call_s + AROUND_A_DEADLINE_S
            with (
                self._wait("model call", engine.name.partition(".")[0], late_after_s),
                spans.span("text_completion", kind="client", gen_ai__operation__name="text_completion") as span,
            ):
                span.set(gen_ai__provider__name="agentrl", gen_ai__conversation__id=self._recorder.record.id)
                span.set(agentrl__call=call.id, agentrl__engine=engine.name, gen_ai__request__max_tokens=room)
                made = await client.generate(
                    call.id,
                    prompt,
                    sampling,
                    deadline_s=self._call_s,
                    version=wanted.version,
                    images=wanted.images,
                )
                span.set(gen_ai__usage__input_tokens=len(prompt), gen_ai__usage__output_tokens=len(made.ids))
                span.set(agentrl__finish=made.finish)
            if problem := self._problem_of(made, room):
                raise EngineRubbishError(problem)
        except EngineError as failed:
            why = f"{engine.name}: {failed}"
            self._recorder.failed(call, why)
            self._clock.give_back(time.monotonic() - sent_at)
            self._failed_at.add(engine.name)
            await self._after_failure(engine, failed)
            rubbish = isinstance(failed, EngineRubbishError)
            raise _FruitlessError(Outcome.ENGINE_RUBBISH if rubbish else Outcome.ENGINE_FAILED, why) from failed
        finally:
            self._under_way.pop(call.id, None)
            self._directory.answered(engine)
        self._recorder.answered(call, prompt, made)
        return made

    async def _after_failure(self, engine: Candidate, failed: EngineError) -> None:
        """Returns when it is time to try again; raises EndedError if the same refusal would only come again."""
        if isinstance(failed, EngineGoneError):
            self._directory.found_dead(engine)
        elif isinstance(failed, CallRefusedError) and not isinstance(failed, VersionNotServedError):
            raise EndedError(Outcome.ENGINE_FAILED, f"{engine.name}: {failed}") from failed
        elif isinstance(failed, EngineBusyError | VersionNotServedError):
            await self._pause(PAUSE_S)
            await self._directory.look_soon()

    async def _engine(self, version: int | None) -> Candidate:
        """The engine for this conversation; waits for one, for a while."""
        self._raise_if_leaving()
        found = self._directory.engine(self._recorder.record.id, version, self._failed_at)
        if found is not None:
            return found
        give_up_at = time.monotonic() + ENGINE_WITHIN_S
        what = "an engine" if version is None else f"an engine that holds version {version}"
        with self._wait(what, "engine", ENGINE_WITHIN_S), self._clock.parked():
            while time.monotonic() < give_up_at:
                await self._pause(LOOK_EVERY_S)
                self._raise_if_leaving()
                await self._directory.look_soon()
                if (found := self._directory.engine(self._recorder.record.id, version, self._failed_at)) is not None:
                    return found
        raise EndedError(Outcome.ENGINE_FAILED, f"there was not {what} within {ENGINE_WITHIN_S:g} s")

    def _problem_of(self, made: Generated, room: int) -> str:
        """Empty, or why a model cannot have generated this."""
        if len(made.log_probs) != len(made.ids) or sum(count for _, count in made.versions) != len(made.ids):
            return f"{len(made.ids)} ids, {len(made.log_probs)} log-probs and versions {made.versions} do not fit"
        if len(made.ids) > room:
            return f"{len(made.ids)} tokens, and at most {room} were allowed"
        if any(not 0 <= token < self._vocabulary for token in made.ids):
            return f"an id outside of the vocabulary of {self._vocabulary}"
        if any(not math.isfinite(value) or value > LOG_PROB_SLACK for value in made.log_probs):
            return "a log-prob that is not finite or above 0"
        if not made.ids and made.finish != "abort":
            return f"no token, and yet it ended by {made.finish}"
        return ""

    async def _pause(self, seconds: float) -> None:
        """Pauses, but ends at once when this sampler leaves."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._leaving.wait()

    def _raise_if_leaving(self) -> None:
        if self._leaving.is_set():
            raise HandedOverError


class _FruitlessError(Exception):
    """A request that gave no token. Another one may succeed."""

    def __init__(self, outcome: Outcome, error: str) -> None:
        super().__init__(error)
        self.outcome = outcome
        self.error = error


def _finish(reason: str) -> Finish:
    return "length" if reason == "length" else "stop"
