"""One claimed Record, from the claim to its end.

Invariants: it ends in exactly one way (finished, failed, given back, or dropped because the claim is lost), and only
after everything that it did is durable or belongs to another owner; the deadline of an episode covers all but scoring.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

import msgspec

from agentrl.config.data_plane import Rollout
from agentrl.errors import AgentrlError, UnknownNameError
from agentrl.policies import outcomes
from agentrl.policies.outcomes import Outcome, OutcomeClass
from agentrl.rollout import agent_loops
from agentrl.rollout.agent_loops import AgentLoop
from agentrl.rollout.episode import Episode
from agentrl.rollout.episode_clock import EpisodeClock
from agentrl.rollout.episode_errors import DroppedError, EndedError, EpisodeExit, HandedOverError
from agentrl.rollout.episode_recorder import Recorder, ending_errors
from agentrl.rollout.episode_run import Surroundings, act, make_episode
from agentrl.rollout.model_calls import ModelCalls
from agentrl.rollout.record_ending import RecordEnder, structure
from agentrl.rollout.tool_calls import ToolCalls
from agentrl.rollout.user_code_faults import UserCodeFaults
from agentrl.store import claims
from agentrl.store.call_writer import Writer
from agentrl.store.claims import Claim, Ending
from agentrl.store.database import Database
from agentrl.store.owners import Lease
from agentrl.tracing import spans, trace_context
from agentrl.tracing.spans import Span

log = logging.getLogger("sampler")
GIVEN_BACK_WITHIN_S = 10.0
_BY_MALFORMED_CALLS = (Outcome.MALFORMED_CALL, Outcome.INVALID_CALL_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerContext(Surroundings):
    """What all episodes of a sampler share."""

    database: Database
    writer: Writer
    lease: Lease
    endings: RecordEnder
    faults: UserCodeFaults


@dataclass(eq=False)
class Attempt:
    """Run it once. `leave` gives it to another sampler if its loop can be resumed."""

    context: SamplerContext
    claim: Claim
    settings: Rollout
    loop: AgentLoop | None = None
    stopped: bool = False
    """Its record was cancelled or superseded, so a cancelled attempt is not given to another sampler."""
    _recorder: Recorder | None = None
    _model_calls: ModelCalls | None = None
    _tool_calls: ToolCalls | None = None
    _leaving: bool = False
    _span: Span | None = None

    @property
    def resumable(self) -> bool:
        return self.loop is None or self.loop.resumable

    async def run(self) -> bool:
        """False if it ended and could not be scored yet."""
        record, task, config = self.claim.record, self.claim.task, self.context.config
        # An episode that was handed over has a root in each sampler, all in one trace.
        root = trace_context.of_record(self.context.lease.run, record.id, float(config.tracing.episodes)).child()
        name, like = f"invoke_agent {task.agent_name}", task.environment
        with spans.span(name, root=root, like=like, gen_ai__operation__name="invoke_agent") as span:
            span.set(gen_ai__agent__name=task.agent_name, gen_ai__conversation__id=record.id)
            span.set(agentrl__record=record.id, agentrl__task=task.id, agentrl__environment=task.environment)
            self._span = span
            return await self._run_once()

    async def _run_once(self) -> bool:
        try:
            return await self._run()
        except DroppedError:
            log.info("%s belongs to another owner now", self.claim.record.id)
        except asyncio.CancelledError:
            with contextlib.suppress(EpisodeExit, AgentrlError, TimeoutError):
                async with asyncio.timeout(GIVEN_BACK_WITHIN_S):
                    await self._give_back(resumable=self.resumable and not self.stopped)
            raise
        finally:
            if self._recorder is not None:
                self._recorder.close()
            self.context.directory.forget(self.claim.record.id)
        return True

    async def leave(self) -> None:
        """Stop where another sampler can continue. Call this only for resumable loops."""
        if not self._leaving:
            self._leaving = True
            await self._leave_calls()

    async def _leave_calls(self) -> None:
        if self._tool_calls is not None:
            self._tool_calls.leave()
        if self._model_calls is not None:
            await self._model_calls.leave()

    async def _run(self) -> bool:
        record, task = self.claim.record, self.claim.task
        endings = self.context.endings
        try:
            self.loop = _loop(task.agent_name)
            recorder = self._recorder = await self._begin(self.loop)
        except EndedError as not_begun:
            await endings.fail(record, not_begun.outcome, not_begun.error, free=not_begun.free)
            return True
        clock = EpisodeClock(self.settings.episode_s)
        episode, self._model_calls, self._tool_calls = make_episode(self.context, task, recorder, self.settings, clock)
        if self._leaving:
            await self._leave_calls()
        try:
            ended = await act(self.loop, episode, self._tool_calls, self.settings, clock)
            episode.over()
            recorder.give_up_open(ended.error or ended.outcome)
            ended = await _settled(recorder, _reproducing(episode, ended))
        except HandedOverError:
            await self._give_back(resumable=True)
            return True
        # In parallel, so that no score waits for the tools.
        closing = asyncio.create_task(self._close_session(), name=f"close the session of {record.id}")
        try:
            return await self._end(self.loop, episode, ended)
        finally:
            await closing

    async def _begin(self, loop: AgentLoop) -> Recorder:
        context, record = self.context, self.claim.record
        owner = context.lease.incarnation
        with ending_errors():
            right = record.resumable == loop.resumable
            if not right and not await claims.mark_resumable(context.database, record.id, owner, loop.resumable):
                raise DroppedError
            return await Recorder.begin(context.database, context.writer, self.claim, owner)

    async def _end(self, loop: AgentLoop, episode: Episode, ended: EndedError) -> bool:
        record, recorder = self.claim.record, episode.recorder
        kind = outcomes.class_of(ended.outcome)
        if self._span is not None:
            self._span.set(agentrl__outcome=str(ended.outcome), agentrl__turns=episode.turns)
            if kind is OutcomeClass.INFRASTRUCTURE:
                self._span.fail(str(ended.outcome))
        name = f"agent {self.claim.task.agent_name}"
        if episode.left_behind:
            self.context.faults.left(name, episode.left_behind)
        if ended.outcome is Outcome.LOOP_FAILED:
            self.context.faults.failed(name, ended.error)
        elif kind is not OutcomeClass.INFRASTRUCTURE:
            self.context.faults.worked(name)
        reached = recorder.reached
        if kind is OutcomeClass.INFRASTRUCTURE:
            await self.context.endings.fail(record, ended.outcome, ended.error, free=ended.free, reached=reached)
            return True
        ending = Ending(
            **msgspec.structs.asdict(reached),
            outcome=ended.outcome,
            malformed=episode.malformed_turns > 0 and ended.outcome not in _BY_MALFORMED_CALLS,
            error=ended.error[:2000],
            context=dict(episode.context.removed),
        )
        data = structure(record, recorder.tree, recorder.runs, kind, recorder.context)
        return await self.context.endings.end(loop, self.claim, ending, episode.texts, data)

    async def _give_back(self, *, resumable: bool) -> None:
        """Gives the record back. If another sampler will continue it, its tool calls and its session stay open."""
        if self._recorder is not None:
            why = "its record was cancelled" if self.stopped else "its sampler left"
            self._recorder.give_up_open(why, tool_calls=not resumable)
            with contextlib.suppress(EpisodeExit) if self.stopped else contextlib.nullcontext():
                await self._recorder.settled()
        if not resumable:
            await self._close_session()
        await self.context.endings.give_back(self.claim.record, resumable=resumable)

    async def _close_session(self) -> None:
        if self._tool_calls is not None:
            await self._tool_calls.close()


def _loop(name: str) -> AgentLoop:
    try:
        return agent_loops.loop_named(name)()
    except UnknownNameError as unknown:
        raise EndedError(Outcome.LOOP_FAILED, str(unknown)) from unknown


def _reproducing(episode: Episode, ended: EndedError) -> EndedError:
    """A fork that ended inside of its trunk did not reproduce the trunk."""
    trunk = episode.recorder.trunk_turns
    if episode.turns >= trunk or outcomes.class_of(ended.outcome) is OutcomeClass.INFRASTRUCTURE:
        return ended
    why = f"the loop ended in turn {episode.turns} of a trunk of {trunk} turns: {ended.error or ended.outcome}"
    return EndedError(Outcome.NOT_REPRODUCIBLE, why)


async def _settled(recorder: Recorder, ended: EndedError) -> EndedError:
    """Waits until tokens are stored, because what could not be stored did not happen."""
    try:
        await recorder.settled()
    except EndedError as not_stored:
        return not_stored
    return ended
