"""The agent that answers at once."""

from __future__ import annotations

from agentrl.policies.outcomes import Outcome
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.episode import Episode


@register_loop("single_turn_agent")
class SingleTurnAgent(AgentLoop):
    """Makes one model call. A tool call in it is treated as an answer, because no second turn could use its result."""

    async def run(self, episode: Episode) -> Outcome:
        reply = await episode.model(episode.first_prompt())
        return self.ending(reply.text, episode.task)
