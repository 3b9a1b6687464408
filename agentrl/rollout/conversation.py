"""An episode as messages, for agent loops that are functions.

Invariants: earlier turns of the model keep the tokens that it sampled, and the template makes the tokens of the
messages between them, so a loop of messages trains exactly what a loop of tokens would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.chat.tool_call_parsers import Call
from agentrl.environments import conversation
from agentrl.environments.other_models import OtherModel
from agentrl.images.processing import ImageError
from agentrl.rollout import episode as episodes
from agentrl.rollout.episode import MAIN, Episode
from agentrl.tokens import image_marks
from agentrl.toolservers.user_names import Image


class Conversation(conversation.Conversation):
    def __init__(self, episode: Episode, *, name: str = MAIN, system: str | None = None) -> None:
        self._episode = episode
        self._name = name
        self._system = system
        self._prompt: list[int] = []
        self._last: episodes.Reply | None = None
        self._state: dict[str, Any] = {}
        self._names = {MAIN}

    @property
    def query(self) -> str:
        return image_marks.shown(self._episode.task.query)

    @property
    def row(self) -> Mapping[str, Any]:
        return self._episode.task.extra

    @property
    def state(self) -> dict[str, Any]:
        return self._state

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self._episode.tools)

    def branch(self, name: str, *, system: str | None = None) -> Conversation:
        if name in self._names or not name:
            raise ValueError(f"a branch needs a name that no other conversation of the episode has, and not {name!r}")
        self._names.add(name)
        beside = Conversation(self._episode, name=name, system=system)
        beside._state, beside._names = self._state, self._names
        return beside

    async def chat(self, message: str | None = None, *, results: Sequence[str] = ()) -> conversation.Reply:
        if self._last is None:
            if message is not None:
                await self._episode.show(message)
            self._prompt = self._first_prompt(message, results)
        elif results and message is None:
            self._prompt = self._after_tools(self._last, results)
        elif message is not None and not results:
            await self._episode.show(message)
            self._prompt = self._after_user(self._last, message)
        else:
            raise ValueError("a further turn needs a message, or the results of tools, and not both")
        last = self._last = await self._episode.model(self._prompt, branch=self._name)
        return conversation.Reply(last.text, tuple(last.parsed.calls), tuple(last.parsed.errors))

    def _after_user(self, last: episodes.Reply, message: str) -> list[int]:
        if self._name == MAIN:
            return self._episode.after_user(self._prompt, last, message)
        return [*self._prompt, *last.ids, *self._episode.user_ids(message, ended=last.ended)]

    def _after_tools(self, last: episodes.Reply, results: Sequence[str]) -> list[int]:
        """Strategies of a context and rewritten histories apply only to the agent's own conversation."""
        if self._name == MAIN:
            return self._episode.after_tools(self._prompt, last, results)
        return [*self._prompt, *last.ids, *self._episode.result_ids(last, results)]

    def _first_prompt(self, message: str | None, results: Sequence[str]) -> list[int]:
        if results:
            raise ValueError("the first turn answers a message, and not the results of tools")
        if message is None and self._name == MAIN:
            return self._episode.first_prompt()
        if message is None:
            raise ValueError(f"the first turn of the branch {self._name} answers a message: call chat(message)")
        system = self._episode.environment.system if self._system is None else self._system
        tokens = self._episode.images.tokens
        return self._episode.template.first(system, self._episode.tools, message, images=tokens)

    async def results_of(self, reply: conversation.Reply) -> list[str]:
        results = await self._episode.call_tools(reply.calls, branch=self._name) if reply.calls else []
        return [*results, *reply.errors]

    async def images(self, text: str | None = None) -> list[Image]:
        task = self._episode.task
        texts = [*(one.content for one in task.earlier), task.query] if text is None else [text]
        return [Image(png) for png in self._episode.images.shown_in(*texts)]

    async def text_of(self, image: Image) -> str:
        try:
            return await self._episode.images.of_loop(image.data)
        except ImageError as wrong:
            raise ValueError(wrong.message) from None

    def other(self, name: str, *, purpose: str = "agent") -> OtherModel:
        return OtherModel(name, purpose=purpose, asker=self._episode.others)

    async def call(self, tool: str, **arguments: Any) -> str:
        return (await self._episode.call_tools([Call(tool, arguments)], branch=self._name))[0]
