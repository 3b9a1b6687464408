"""Tasks of Harbor: the agent works in a shell, and the task's own verifier says what that is worth.

Invariants:
- The files of a task are there before the first call of the agent, and its tests only when it has finished. An episode
  whose files cannot be put there is a failure of the infrastructure.
- The verifier runs in the session of the agent. It does not run if the agent reached a limit of tokens or time: it did
  not finish, and that is worth 0.
- A verifier that wrote no reward leaves the record unscored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from agentrl.adapters.harbor_tasks import HarborTask, task_at
from agentrl.chat.tool_call_parsers import Call
from agentrl.environments.rubric import Score
from agentrl.policies.outcomes import Outcome
from agentrl.rollout.agent_loops import AgentLoop
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode import Episode
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.scorers import UnscoredError
from agentrl.rollout.tool_agent import ToolAgent
from agentrl.store.documents import Task
from agentrl.toolservers.user_names import PUT_TOOL, VERIFY_TOOL


class HarborAgent(ToolAgent):
    def __init__(self) -> None:
        super().__init__()
        self._put = False

    async def run(self, episode: Episode) -> Outcome:
        outcome = await super().run(episode)
        await self._verify(episode)
        return outcome

    def answer(self, texts: Sequence[str], task: Task) -> str | None:
        """The last text. The verifier scores what the agent did, so any text counts as an answer."""
        return texts[-1] if texts else None

    async def results_of(self, episode: Episode, calls: Sequence[Call]) -> list[str]:
        await self._begin(episode)
        results = await episode.call_tools(calls)
        if episode.turns >= episode.limits.max_turns:
            await self._verify(episode)  # Another turn would end the episode before anything could be called.
        return results

    async def _begin(self, episode: Episode) -> None:
        if not self._put:
            self._put = True
            results = await episode.call_hidden(PUT_TOOL, {"archive": _task(episode.task).files()})
            if wrong := next(filter(None, results), ""):
                raise EndedError(Outcome.TOOL_SERVER_FAILED, f"the files of the task are not there: {wrong[:200]}")

    async def _verify(self, episode: Episode) -> None:
        await self._begin(episode)
        task = _task(episode.task)
        await episode.call_hidden(VERIFY_TOOL, {"archive": task.tests(), "timeout_s": task.verifier_s})

    async def evaluate_record(self, episode: EndedEpisode) -> float | Score:  # type: ignore[override]
        # A call by the model has this name, too, and no server.
        verified = [call for call in episode.tool_calls if call.tool == VERIFY_TOOL and call.server]
        if not verified:
            return Score(0.0, {"verified": 0.0})
        try:
            said = json.loads(verified[-1].result)
            rewards: dict[str, float] | None = said["rewards"]
        except (ValueError, LookupError, TypeError):
            raise UnscoredError(f"The verifier did not run: {verified[-1].result[:200]}") from None
        if not rewards:
            raise UnscoredError(
                f"The verifier wrote no reward; it ended with {said['status']}: {said['output'][-200:]}"
            )
        value = rewards.get("reward", sum(rewards.values()) / len(rewards))
        return Score(value, {"verified": 1.0, **rewards})


def _task(task: Task) -> HarborTask:
    return task_at(Path(str(task.extra["task_folder"])), has_network=True)


def harbor_loop(name: str) -> type[AgentLoop]:
    return type(name, (HarborAgent,), {})
