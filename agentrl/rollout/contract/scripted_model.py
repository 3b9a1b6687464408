"""A model whose turns are written beforehand, for all episodes or for each one separately.

Invariants:
- An episode gets its turns in order, and then the last one repeatedly.
- A held episode waits in its model call until it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from agentrl.chat.template import Template
from agentrl.engines.interface import EngineCall, Generated


class ScriptedModel:
    """An engine for one process."""

    def __init__(self, template: Template, version: int, texts: Sequence[str] = ()) -> None:
        """`texts` are the turns of episodes without a script of their own."""
        self._template = template
        self._version = version
        self._turns_of_all = [template.assistant(text) for text in texts]
        self._turns: dict[str, list[list[int]]] = {}
        self._said: dict[str, int] = defaultdict(int)
        self._held: dict[str, asyncio.Event] = {}
        self._encoded: dict[str, list[int]] = {}
        self.prompts: dict[str, list[tuple[int, ...]]] = defaultdict(list)
        """The prompts of each episode, in the order of its calls."""

    def write(self, record: str, texts: Sequence[str]) -> None:
        for text in texts:
            if text not in self._encoded:
                self._encoded[text] = self._template.assistant(text)
        self._turns[record] = [self._encoded[text] for text in texts]

    def hold(self, record: str) -> asyncio.Event:
        """The episode waits in its next model call; the event says that it does."""
        return self._held.setdefault(record, asyncio.Event())

    def forget(self, record: str) -> None:
        for known in (self._turns, self._said, self._held, self.prompts):
            known.pop(record, None)

    async def generate(self, call: EngineCall) -> Generated:
        record = call.rid.rpartition("/")[0]
        self.prompts[record].append(tuple(call.ids))
        if (held := self._held.get(record)) is not None:
            held.set()
            await asyncio.Event().wait()
        turns = self._turns.get(record, self._turns_of_all)
        turn = turns[min(self._said[record], len(turns) - 1)]
        self._said[record] += 1
        await asyncio.sleep(0)  # Lets parallel episodes take turns.
        said = turn[: call.sampling.max_new_tokens]
        return Generated(
            ids=said,
            log_probs=[0.0] * len(said),
            versions=[(self._version, len(said))],
            finish="stop" if len(said) == len(turn) else "length",
        )

    async def abort(self, rid: str) -> None:
        """Nothing runs here that could be aborted."""
