"""The agent that calls tools until it answers.

Invariants: all calls of a turn run side by side, and none is dropped; a call that cannot be read is answered with what
is wrong about it, so that the model can do better, a few times; a turn without calls is the last one.
"""

from __future__ import annotations

from typing import ClassVar

from agentrl.policies.outcomes import Outcome
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.episode import Episode, Reply
from agentrl.rollout.episode_errors import EndedError


@register_loop("tool_agent")
class ToolAgent(AgentLoop):
    """Resumable: what it asks follows from what it was answered."""

    resumable = True
    most_malformed: ClassVar[int] = 3
    """Turns with a malformed call that are put up with; the next one ends the episode. 0: the first one does."""
    most_alike: ClassVar[int] = 3
    """As many turns in a row that say the same end the episode."""

    async def run(self, episode: Episode) -> Outcome:
        ids = episode.first_prompt()
        while True:
            reply = await episode.model(ids)
            if not reply.parsed.calls and not reply.parsed.errors:
                return self.ending(reply.text, episode.task)
            self._end_if_hopeless(episode, reply)
            results = await episode.call_tools(reply.parsed.calls) if reply.parsed.calls else []
            ids = episode.after_tools(ids, reply, [*results, *reply.parsed.errors])

    def _end_if_hopeless(self, episode: Episode, reply: Reply) -> None:
        if reply.parsed.errors:
            episode.malformed_turns += 1
            if episode.malformed_turns > self.most_malformed:
                outcome = Outcome.INVALID_CALL_LIMIT if self.most_malformed else Outcome.MALFORMED_CALL
                raise EndedError(outcome, reply.parsed.errors[0])
        last = episode.texts[-self.most_alike :]
        if len(last) == self.most_alike and len(set(last)) == 1:
            raise EndedError(Outcome.REPETITION, f"{self.most_alike} turns in a row say the same")
