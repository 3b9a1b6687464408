"""Computes the effect of a staleness bound on ready records: how many would be too old to train.

Invariants:
- The steward counts, so the number equals the number on every screen, even when no trainer takes steps.
- If the steward cannot count, the effect says so and does not claim that no record is lost.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable

import msgspec

from agentrl.config.policy_rules import freshness_rule
from agentrl.control.context import Context
from agentrl.errors import AgentrlError, ConfigError, RefusedError
from agentrl.formatting.amounts import counted
from agentrl.policies.freshness import STRATEGIES, Strategy
from agentrl.protocol import messages
from agentrl.protocol.commands import COMMANDS, CommandSpec
from agentrl.protocol.data_commands import StalenessReport
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.specs import Role
from agentrl.protocol.wire import decode_as

RULES = ("bound", "hard_bound", "strategy")
"""Knobs of the trainer by which records become too old."""
_QUERY = "staleness"

AskSteward = Callable[[CommandSpec, messages.Request, str], Awaitable[msgspec.Raw]]


class StalenessPreview:
    def __init__(self, context: Context, ask_steward: AskSteward) -> None:
        self._context = context
        self._ask_steward = ask_steward

    async def extend(self, name: str, value: KnobValue, effect: Effect, *, taken: bool) -> Effect:
        """Extend the effect of a knob by what happens to ready records; `taken`: whether there is a trainer that drops
        them."""
        if not self._is_a_rule(name):
            return effect
        before, after = self._oldest({}), self._oldest({name: value})
        try:
            report = await self._ages()
        except AgentrlError as failed:
            sentence, lost = f"how old the ready records are is not known: {failed.message}", after < before
        else:
            sentence, lost = describe(report, before, after, taken=taken)
        if lost and taken:
            return msgspec.structs.replace(effect, loses=(*effect.loses, sentence))
        return msgspec.structs.replace(effect, changes=(*effect.changes, sentence))

    def _is_a_rule(self, name: str) -> bool:
        group = self._context.state.groups.get(self._context.knobs.declaration(name).owner)
        return name in RULES and group is not None and group.spec.role is Role.TRAINER

    def _oldest(self, wanted: dict[str, KnobValue]) -> int:
        """The greatest age that trains, by the present values of the knobs or with the new value."""
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

    async def _ages(self) -> StalenessReport:
        request = messages.Request(uuid.uuid4().hex, _QUERY)
        return decode_as(StalenessReport, await self._ask_steward(COMMANDS[_QUERY], request, "coordinator"))


def describe(report: StalenessReport, before: int, after: int, *, taken: bool) -> tuple[str, bool]:
    """Returns a sentence with the number of records that would be too old, and whether the change makes any record too
    old.
    """
    ready, already = _older(report.ready, after), _older(report.ready, max(before, after))
    late = _older(report.under_way, after) - _older(report.under_way, max(before, after))
    total = counted(sum(report.ready.values()), "ready records")
    sentence = f"{ready or 'none'} of {total} would be outside"
    if already:
        sentence += f" ({'all' if already == ready else already} already)"
    if ready > already:
        sentence += " and dropped" if taken else ", although no trainer takes steps now"
    if late:
        sentence += f"; {late} under way would come too late"
    return sentence, ready > already or late > 0


def _older(ages: dict[int, int], bound: int) -> int:
    return sum(count for age, count in ages.items() if age > bound)
