"""An agent for a model with random weights: it calls a tool whatever the model writes, and rewards letters over other
characters."""

from __future__ import annotations

from agentrl.chat.tool_call_parsers import Call
from agentrl.policies.outcomes import Outcome
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode import Episode

ITEM = "bake"


@register_loop("asks_anyway")
class AsksAnyway(AgentLoop):
    async def run(self, episode: Episode) -> Outcome:
        prompt = episode.first_prompt()
        reply = await episode.model(prompt, may_be_cut=True)
        results = await episode.call_tools([Call("lookup", {"item": ITEM})])
        await episode.model(episode.after_tools(prompt, reply, results), may_be_cut=True)
        return Outcome.ANSWERED

    async def evaluate_record(self, episode: EndedEpisode) -> float:  # type: ignore[override]
        """The share of letters, in which outputs of a model with random weights differ."""
        said = "".join(episode.texts)
        return sum(one.isalpha() for one in said) / max(1, len(said))
