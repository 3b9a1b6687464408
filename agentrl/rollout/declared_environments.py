"""Environments of Python files as agent loops and scorers.

Invariants: an environment's loop, and its scorer if it has any, have the environment's name; a score follows from the
stored episode.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping
from typing import Any, cast

from agentrl.environments import rubric
from agentrl.environments.environment import Environment, LifeFunction, declared
from agentrl.environments.episodes import Episode as ScoredEpisode
from agentrl.environments.episodes import ToolCall
from agentrl.environments.judge import NoVerdictError
from agentrl.environments.other_models import OtherModelError
from agentrl.environments.rubric import Score
from agentrl.policies import outcomes
from agentrl.policies.outcomes import Outcome, OutcomeClass
from agentrl.policies.status_tables import ToolCallStatus
from agentrl.rollout import scorers
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode import Episode
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.scorers import UnscoredError, register_scorer
from agentrl.rollout.tool_agent import ToolAgent
from agentrl.store import documents
from agentrl.store.documents import Task
from agentrl.tokens import image_marks
from agentrl.toolservers.user_names import HIDDEN_TOOLS, NO_JSON, STATE_TOOL

TEARDOWN_WITHIN_S = 10.0


def register_declared() -> None:
    """Register the environments that this process has imported, under their names."""
    for environment in declared():
        register_loop(environment.name)(_loop_of(environment))
        if environment.scorers:
            register_scorer(environment.name)(only_whole(environment.name))


def only_whole(name: str) -> scorers.Scorer:
    """The scorer of an environment that scores whole episodes, for episodes of another agent."""

    async def refuse(answer: str, truth: str, task: Task) -> float:
        raise UnscoredError(f"The scorers of the environment {name} judge episodes of its own agent only.")

    return refuse


def _loop_of(environment: Environment) -> type[AgentLoop]:
    class DeclaredLoop(ToolAgent):
        resumable = environment.resumable

        async def run(self, episode: Episode) -> Outcome:
            conversation = Conversation(episode)
            try:
                await _lived(environment.setup, conversation)
                outcome = await self._acted(episode, conversation)
            except EndedError as ended:
                if outcomes.class_of(ended.outcome) is OutcomeClass.LIMIT:
                    await keep_state(episode, conversation)
                raise
            finally:
                async with asyncio.timeout(TEARDOWN_WITHIN_S):
                    await _lived(environment.teardown, conversation)
            return outcome

        async def _acted(self, episode: Episode, conversation: Conversation) -> Outcome:
            if environment.agent is None:
                outcome = await super().run(episode)
            else:
                returned = await environment.agent(conversation)
                ending = self.ending(episode.last_text, episode.task)
                outcome = ending if returned is None else cast(Outcome, returned)
            await keep_state(episode, conversation)
            return outcome

        async def evaluate_record(self, episode: EndedEpisode) -> float | Score:  # type: ignore[override]
            task = episode.task
            answer = self.answer(episode.own_texts, task)
            if task.scorer != environment.name:
                return await scorers.score(task.scorer, answer, task)
            try:
                return await rubric.score_of(environment.scorers, seen(episode, answer))
            except (OtherModelError, NoVerdictError) as cannot:
                raise UnscoredError(f"A judge of {environment.name} cannot say: {cannot}") from cannot

    DeclaredLoop.__name__ = DeclaredLoop.__qualname__ = environment.name
    return DeclaredLoop


async def _lived(function: LifeFunction | None, conversation: Conversation) -> None:
    if function is not None and inspect.isawaitable(done := function(conversation)):
        await done


async def keep_state(episode: Episode, conversation: Conversation) -> None:
    """Stores the state of the tools and of the loop, for scorers."""
    await episode.state_of_tools()
    if conversation.state:
        try:
            text = json.dumps(conversation.state, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as wrong:
            raise TypeError(f"episode.state {NO_JSON}: {wrong}") from None
        await episode.keep_state(text)


def seen(episode: EndedEpisode, answer: str | None) -> ScoredEpisode:
    """The stored episode in the form that scorers in a file get."""
    calls = [
        ToolCall(turn, call.tool, call.arguments, image_marks.shown(call.result), call.status == ToolCallStatus.OK)
        for turn, call in zip(episode.turns_of_calls, episode.tool_calls, strict=True)
        if not _is_own(call)
    ]
    kept = [call for call in episode.tool_calls if call.tool == STATE_TOOL and call.status == ToolCallStatus.OK]
    return ScoredEpisode(
        query=image_marks.shown(episode.task.query),
        truth=episode.task.answer,
        answer=answer,
        texts=episode.texts,
        branches=episode.branches,
        calls=calls,
        state=_state([image_marks.shown(call.result) for call in kept]),
        row=episode.task.extra,
        outcome=episode.outcome,
        record=episode.record,
    )


def _is_own(call: documents.ToolCall) -> bool:
    """Whether agentrl made the call. A model's call of a hidden tool is refused."""
    return call.tool in HIDDEN_TOOLS and call.status != ToolCallStatus.REFUSED


def _state(texts: list[str]) -> Mapping[str, Mapping[str, Any]]:
    """The stored state of the tools of all servers, and of the loop."""
    found: dict[str, Any] = {}
    for text in texts:
        try:
            found |= json.loads(text)
        except ValueError:
            raise UnscoredError("The state of the tools is longer than result_max_chars of their server.") from None
    return found
