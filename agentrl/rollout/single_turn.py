"""The agent that answers at once."""

from __future__ import annotations

from agentrl.policies.outcomes import Outcome
from agentrl.rollout.episode import Episode
from agentrl.rollout.loops import AgentLoop, register_loop


@register_loop("single_turn_agent")
class SingleTurnAgent(AgentLoop):
    """One model call; tools are not offered a second one, so a call to them is an answer like any other."""

    async def run(self, episode: Episode) -> Outcome:
        reply = await episode.model(episode.first_prompt())
        return self.ending(reply.text, episode.task)
