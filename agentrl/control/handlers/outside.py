"""What another staleness bound would leave outside of the records that are ready.

Invariants: the steward counts, so the number is that of every screen, whoever takes Steps now and also where nobody
does; records that nobody could count are not taken for none.
"""

from __future__ import annotations

import uuid

import msgspec

from agentrl.config.policy_rules import freshness_rule
from agentrl.control.context import Context
from agentrl.control.handlers.served_commands import ServedCommands
from agentrl.errors import AgentrlError, ConfigError, RefusedError
from agentrl.formatting.amounts import counted
from agentrl.policies.freshness import STRATEGIES, Strategy
from agentrl.protocol import messages
from agentrl.protocol.commands import COMMANDS
from agentrl.protocol.data_commands import StalenessReport
from agentrl.protocol.effects import Effect
from agentrl.protocol.rows import KnobValue
from agentrl.protocol.specs import Role
from agentrl.protocol.wire import decode_as

RULES = ("bound", "hard_bound", "strategy")
"""Knobs of the trainer by which records become too old."""
_ASKS = "staleness"


class Outside:
    def __init__(self, context: Context, serving: ServedCommands) -> None:
        self._context = context
        self._serving = serving

    async def told(self, name: str, value: KnobValue, effect: Effect, *, taken: bool) -> Effect:
        """The effect with what becomes of ready records; `taken` if a trainer is there to drop them."""
        if not self._is_a_rule(name):
            return effect
        before, after = self._oldest({}), self._oldest({name: value})
        try:
            report = await self._count()
        except AgentrlError as away:
            sentence, lost = f"how old the ready records are is not known: {away.message}", after < before
        else:
            sentence, lost = outside(report, before, after, taken=taken)
        if lost and taken:
            return msgspec.structs.replace(effect, loses=(*effect.loses, sentence))
        return msgspec.structs.replace(effect, changes=(*effect.changes, sentence))

    def _is_a_rule(self, name: str) -> bool:
        group = self._context.state.groups.get(self._context.knobs.declaration(name).owner)
        return name in RULES and group is not None and group.spec.role is Role.TRAINER

    def _oldest(self, wanted: dict[str, KnobValue]) -> int:
        """The greatest age that trains by the knobs as they are set, or as they would be."""
        knobs = self._context.knobs
        values = {name: knobs.value(name) for name in RULES if name in knobs.names()} | wanted
        bound, hard, named = values.get("bound", 0), values.get("hard_bound", 0), values.get("strategy")
        strategy: Strategy = next((one for one in STRATEGIES if one == named), "drop")
        assert isinstance(bound, int)
        assert isinstance(hard, int)
        try:
            return freshness_rule(strategy, bound, hard, wait_limit_s=0.0).oldest
        except ConfigError as wrong:
            raise RefusedError(wrong.message, hint=wrong.hint) from wrong

    async def _count(self) -> StalenessReport:
        request = messages.Request(uuid.uuid4().hex, _ASKS)
        return decode_as(StalenessReport, await self._serving.ask(COMMANDS[_ASKS], request, "coordinator"))


def outside(report: StalenessReport, before: int, after: int, *, taken: bool) -> tuple[str, bool]:
    """In a sentence how many records would be too old, and whether some that are not would become it."""
    ready, already = _older(report.ready, after), _older(report.ready, max(before, after))
    late = _older(report.under_way, after) - _older(report.under_way, max(before, after))
    total = counted(sum(report.ready.values()), "ready records")
    said = f"{ready or 'none'} of {total} would be outside"
    if already:
        said += f" ({'all' if already == ready else already} already)"
    if ready > already:
        said += " and dropped" if taken else ", though nobody takes a step now"
    if late:
        said += f"; {late} under way would come too late"
    return said, ready > already or late > 0


def _older(ages: dict[int, int], bound: int) -> int:
    return sum(count for age, count in ages.items() if age > bound)
