"""Environments of Python files as agent loops and scorers.

Invariants: an environment's loop, and its scorer if it has any, have the environment's name; a score follows from the
stored episode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrl.chat.tool_call_parsers import Call
from agentrl.environments import rubric
from agentrl.environments.environment import Environment, declared
from agentrl.environments.episodes import Episode as ScoredEpisode
from agentrl.environments.episodes import ToolCall
from agentrl.environments.rubric import Score
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import ToolCallStatus
from agentrl.rollout import scorers
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode import Episode
from agentrl.rollout.scorers import UnscoredError, register_scorer
from agentrl.rollout.tool_agent import ToolAgent
from agentrl.store.documents import Task
from agentrl.toolservers.user_names import STATE_TOOL


def register_declared() -> None:
    """Make what this process has imported known under its names."""
    for environment in declared():
        register_loop(environment.name)(_loop_of(environment))
        if environment.scorers:
            register_scorer(environment.name)(_only_whole(environment.name))


def _only_whole(name: str) -> scorers.Scorer:
    async def refuse(answer: str, truth: str, task: Task) -> float:
        raise UnscoredError(f"The scorers of the environment {name} judge episodes of its own agent only.")

    return refuse


def _loop_of(environment: Environment) -> type[AgentLoop]:
    class DeclaredLoop(ToolAgent):
        resumable = environment.resumable

        async def run(self, episode: Episode) -> Outcome:
            if environment.agent is None:
                outcome = await super().run(episode)
            else:
                returned = await environment.agent(Conversation(episode))
                outcome = self.ending(episode.texts[-1], episode.task) if returned is None else Outcome(str(returned))
            if episode.keeps_state:
                await episode.call_tools([Call(STATE_TOOL)])
            return outcome

        async def evaluate_record(self, episode: EndedEpisode) -> float | Score:  # type: ignore[override]
            task = episode.task
            answer = self.answer(episode.texts, task)
            if task.scorer != environment.name:
                return await scorers.score(task.scorer, answer, task)
            return await rubric.score_of(environment.scorers, _seen(episode, answer))

    DeclaredLoop.__name__ = DeclaredLoop.__qualname__ = environment.name
    return DeclaredLoop


def _seen(episode: EndedEpisode, answer: str | None) -> ScoredEpisode:
    """The stored episode, as scorers of a file see it."""
    calls = [
        ToolCall(turn, call.tool, call.arguments, call.result, call.status == ToolCallStatus.OK)
        for turn, call in zip(episode.turns_of_calls, episode.tool_calls, strict=True)
    ]
    return ScoredEpisode(
        query=episode.task.query,
        truth=episode.task.answer,
        answer=answer,
        texts=episode.texts,
        calls=[call for call in calls if call.tool != STATE_TOOL],
        state=_state([call for call in calls if call.tool == STATE_TOOL and call.ok]),
        row=episode.task.extra,
        outcome=episode.outcome,
        record=episode.record,
    )


def _state(read: list[ToolCall]) -> Mapping[str, Mapping[str, Any]]:
    try:
        found: Mapping[str, Mapping[str, Any]] = json.loads(read[-1].result) if read else {}
    except ValueError:
        raise UnscoredError("The state of the tools is longer than result_max_chars of their server.") from None
    return found
