"""What a score may depend on: an ended episode with its tool calls, as it is stored.

Scoring may be repeated in another process after the episode and its sessions are gone, so a score depends on stored
data only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

import msgspec

from agentrl.store import chunks
from agentrl.store.database import Database
from agentrl.store.documents import DispatchedSamplingTask, Task, ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedEpisode:
    record: str
    """The id of its record."""
    task: Task
    outcome: str
    texts: Sequence[str]
    """What the model wrote, turn by turn."""
    tool_calls: Sequence[ToolCall]
    """With arguments, status and result, turn by turn, in the order in which they were requested."""
    turns_of_calls: Sequence[int]
    """The turn of each of them."""
    branches: Sequence[str] = ()
    """For each text, the branch that it belongs to; empty for the agent's own conversation."""

    @property
    def own_texts(self) -> list[str]:
        """The texts of the agent's own conversation."""
        branches = self.branches or [""] * len(self.texts)
        return [text for text, branch in zip(self.texts, branches, strict=True) if not branch]


Stored = Callable[[], Awaitable[EndedEpisode]]
_stored: ContextVar[Stored] = ContextVar("stored_episode")


def scores(stored: Stored) -> None:
    """Makes this episode available to the scorers that the present asyncio task calls."""
    _stored.set(stored)


async def stored_episode() -> EndedEpisode:
    """The episode that is scored now, for a scorer whose arguments have only a part of it."""
    return await _stored.get()()


async def from_calls(
    database: Database, task: Task, record: str, outcome: str, answered: Sequence[DispatchedSamplingTask]
) -> EndedEpisode:
    """Makes the episode from its model calls with tokens. Texts and results that were cut for their documents are whole
    here."""
    cut = await chunks.cut_of(database, [record])

    async def whole(document: str, field: str, inline: str) -> str:
        return (await chunks.whole(database, document, field) if (document, field) in cut else None) or inline

    turns = [call for call in answered if call.over_at is not None]
    return EndedEpisode(
        record=record,
        task=task,
        outcome=outcome,
        texts=[await whole(turn.id, "text", turn.text) for turn in turns],
        tool_calls=[
            msgspec.structs.replace(call, result=await whole(call.id, "result", call.result))
            for turn in turns
            for call in turn.tool_calls
        ],
        branches=[turn.branch for turn in turns],
        turns_of_calls=[number for number, turn in enumerate(turns) for _ in turn.tool_calls],
    )
