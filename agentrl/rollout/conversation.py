"""An episode as messages, for agent loops that are functions.

Invariants: what the model said before stays the tokens that it sampled, and what is added between are the template's
tokens for it, so a loop of messages trains exactly what a loop of tokens would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.chat.tool_call_parsers import Call
from agentrl.environments import conversation
from agentrl.rollout import episode as episodes
from agentrl.rollout.episode import Episode


class Conversation(conversation.Conversation):
    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._prompt: list[int] = []
        self._last: episodes.Reply | None = None

    @property
    def query(self) -> str:
        return self._episode.task.query

    @property
    def row(self) -> Mapping[str, Any]:
        return self._episode.task.extra

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self._episode.tools)

    async def chat(self, message: str | None = None, *, results: Sequence[str] = ()) -> conversation.Reply:
        if self._last is None:
            if message is not None or results:
                raise ValueError("the first turn answers the query: call chat() without arguments")
            self._prompt = self._episode.first_prompt()
        elif results and message is None:
            self._prompt = self._episode.after_tools(self._prompt, self._last, results)
        elif message is not None and not results:
            added = self._episode.template.user(message, ended=self._last.ended)
            self._prompt = [*self._prompt, *self._last.ids, *added]
        else:
            raise ValueError("a further turn needs a message, or the results of tools, and not both")
        last = self._last = await self._episode.model(self._prompt)
        return conversation.Reply(last.text, tuple(last.parsed.calls), tuple(last.parsed.errors))

    async def results_of(self, reply: conversation.Reply) -> list[str]:
        results = await self._episode.call_tools(reply.calls) if reply.calls else []
        return [*results, *reply.errors]

    async def call(self, tool: str, **arguments: Any) -> str:
        return (await self._episode.call_tools([Call(tool, arguments)]))[0]
