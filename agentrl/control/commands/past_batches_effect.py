"""Extends the effect of a knob by the changes that it would have made to the last batches.

Invariants:
- The steward counts them with the same functions that close groups and make batches.
- If the steward cannot count them, the effect says so, but the change is not refused.
- Changes that cannot be counted, because other tasks would have been sampled, are named as uncounted.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence

import msgspec

from agentrl.control.commands.staleness_effect import AskSteward
from agentrl.control.context import Context
from agentrl.errors import AgentrlError
from agentrl.protocol import messages
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_commands import PastChange, PastPreview
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.wire import decode_as, raw

_QUERY = "preview_past"
_OF_MIX = re.compile(r"curriculum goes|environments\..+\.weight goes")
_UNCOUNTED = "what another mix would have changed over the last batches is not counted: it would have had other tasks"


def not_counted(changes: Sequence[str]) -> tuple[str, ...]:
    """A note on the changes of a run file whose effect on the last batches cannot be counted."""
    return (_UNCOUNTED,) if any(_OF_MIX.match(change) for change in changes) else ()


class PastBatchesPreview:
    def __init__(self, context: Context, ask_steward: AskSteward) -> None:
        self._context = context
        self._ask_steward = ask_steward

    async def extend(self, name: str, value: KnobValue, effect: Effect, *, taken: bool) -> Effect:
        knobs = self._context.knobs
        if not knobs.declaration(name).looks_back:
            return effect
        now = {each: knobs.value(each) for each in knobs.names() if knobs.declaration(each).looks_back}
        request = messages.Request(uuid.uuid4().hex, _QUERY, raw(PastPreview(name, value, now)))
        try:
            answer = decode_as(PastChange, await self._ask_steward(COMMANDS[_QUERY], request, "coordinator"))
            sentence = answer.sentence
        except AgentrlError as failed:
            sentence = f"what it would have changed over the last batches is not known: {failed.message}"
        return msgspec.structs.replace(effect, changes=(*effect.changes, sentence))
