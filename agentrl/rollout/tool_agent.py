"""The agent that calls tools until it answers.

Invariants: all calls of a turn run in parallel, and none is dropped; for a call that cannot be parsed the model gets a
message that says what is wrong, a few times; a turn without calls is the last one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentrl.chat.tool_call_parsers import Call
from agentrl.policies import repetition
from agentrl.policies.outcomes import Outcome
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.episode import Episode, Reply
from agentrl.rollout.episode_errors import EndedError


@register_loop("tool_agent")
class ToolAgent(AgentLoop):
    """Resumable: its requests depend only on the answers that it got."""

    resumable = True
    most_malformed: ClassVar[int] = 3
    """Turns with a malformed call that are tolerated; the next one ends the episode. 0: the first one ends it."""

    def __init__(self) -> None:
        self._calls: list[list[tuple[str, Mapping[str, Any]]]] = []
        """The calls of each turn."""

    async def run(self, episode: Episode) -> Outcome:
        ids = episode.first_prompt()
        while True:
            reply = await episode.model(ids)
            if not reply.parsed.calls and not reply.parsed.errors:
                return self.ending(reply.text, episode.task)
            warning = self._end_if_hopeless(episode, reply)
            results = await self.results_of(episode, reply.parsed.calls) if reply.parsed.calls else []
            given = [*results, *reply.parsed.errors]
            ids = episode.after_tools(ids, reply, [*given[:-1], f"{given[-1]}\n{warning}" if warning else given[-1]])

    async def results_of(self, episode: Episode, calls: Sequence[Call]) -> list[str]:
        """The results of the calls of a turn, in their order."""
        return await episode.call_tools(calls)

    def _end_if_hopeless(self, episode: Episode, reply: Reply) -> str:
        """A sentence for the model if it repeats itself and may go on; else empty."""
        if reply.parsed.errors:
            episode.malformed_turns += 1
            if episode.malformed_turns > self.most_malformed:
                outcome = Outcome.INVALID_CALL_LIMIT if self.most_malformed else Outcome.MALFORMED_CALL
                raise EndedError(outcome, reply.parsed.errors[0])
        rule = episode.environment.repetition
        self._calls.append([(call.name, call.arguments) for call in reply.parsed.calls])
        found = ""
        if rule.texts and (count := repetition.equal_texts(episode.texts)) >= rule.texts:
            found = f"{count} turns in a row say the same"
        elif rule.calls and (count := repetition.equal_calls(self._calls)) >= rule.calls:
            found = f"{count} turns in a row make the same calls"
        if found and rule.means == "end":
            raise EndedError(Outcome.REPETITION, found)
        return f"({found}. Do something else, or answer.)" if found else ""
