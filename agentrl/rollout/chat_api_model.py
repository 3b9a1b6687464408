"""A model behind an OpenAI-compatible address, for episodes that are tried.

Invariants:
- It gets the conversation as messages, so the chat template of a run does not matter.
- Its answers never train, because their tokens are not known.
- A prompt with images is refused: its messages would have words in their place, and the answer would be about those.
"""

from __future__ import annotations

from agentrl.chat.template import Template
from agentrl.engines.interface import CallRefusedError, EngineCall, Generated
from agentrl.engines.openai_calls import OpenAiCalls

_ROLES = {"tool": "user", "": "user"}
"""Results of tools are messages of the user: the system prompt describes the tools."""


class ChatApiModel:
    """An engine inside of one process."""

    def __init__(self, template: Template, url: str, name: str, key: str, version: int, *, max_tokens: int) -> None:
        """`max_tokens` of an answer are counted by the service."""
        self._api = OpenAiCalls(url, key)
        self._max_tokens = max_tokens
        self._template = template
        self._name = name
        self._version = version

    async def close(self) -> None:
        await self._api.close()

    async def generate(self, call: EngineCall) -> Generated:
        if call.images:
            raise CallRefusedError("A model behind an address gets no images, and this prompt shows some.")
        body = {
            "model": self._name,
            "messages": [
                {"role": _ROLES.get(role, role), "content": text} for role, text in self._template.messages(call.ids)
            ],
            "max_tokens": min(self._max_tokens, call.sampling.max_new_tokens),
            "temperature": call.sampling.temperature,
            "top_p": call.sampling.top_p,
        }
        answer = await self._api.answer(body, within_s=call.deadline_s)
        ids, cut = self._template.assistant(answer.text), answer.finish == "length"
        if cut or len(ids) > call.sampling.max_new_tokens:
            ids, cut = ids[:-1][: call.sampling.max_new_tokens] or ids, True
        return Generated(
            ids=ids,
            log_probs=[0.0] * len(ids),
            versions=[(self._version, len(ids))],
            finish="length" if cut else "stop",
        )

    async def abort(self, rid: str) -> None:
        """Does nothing: the answer of a call that nothing awaits is dropped."""
