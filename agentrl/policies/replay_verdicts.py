"""Decides which earlier calls rebuild the session of a replayed tool call, and judges what the call returns now.

A verdict decides what happens to the record, so it depends on nothing but the results and what the tools declare.

Invariants:
- A call of a `pure` tool is never repeated to rebuild a session, and a replay of one needs no rebuilding.
- A call that did not run is never repeated.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from agentrl.policies.status_tables import ToolCallStatus

ToolEffect = Literal["pure", "session", "outside"]
"""What a call changes: nothing; only the session of its record; something outside that outlives the session."""
ANY_TOOL = "*"
"""The entry for all tools that a declaration does not name."""
DEFAULT_EFFECT: ToolEffect = "session"


class Verdict(enum.StrEnum):
    SAME = "same"
    """It returns the recorded result."""
    FLAKY = "flaky"
    """Some runs work, or return the recorded result, and others do not."""
    DIFFERENT = "different"
    """It ends in the same way, with another result."""
    FIXED = "fixed"
    """It failed then and works now."""
    BROKEN = "broken"
    """It worked then and fails now."""
    CANNOT_RUN = "cannot run"
    """No run could begin: the server or the tool is not there, or the session cannot be rebuilt."""
    NOT_REPRODUCIBLE = "not reproducible"
    """An earlier call of the record returned another result, so the session is not in the recorded state."""


@dataclass(frozen=True, slots=True)
class CallResult:
    """How a tool call ended."""

    status: str
    text: str = ""
    error_class: str = ""

    @property
    def works(self) -> bool:
        return self.status == ToolCallStatus.OK


@dataclass(frozen=True, slots=True)
class EarlierCall:
    """A tool call of the record, as far as the plan of a replay needs it."""

    id: str
    turn: int
    number: int
    """Its place in the turn. A call that was made again has the number of the first one plus a multiple of 1000."""
    server: str
    tool: str
    status: str


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    agreed: int = 0
    """For a flaky call: how many runs worked; if all or none worked, how many returned the recorded result."""


RAN = frozenset(
    {
        ToolCallStatus.OK,
        ToolCallStatus.TOOL_ERROR,
        ToolCallStatus.TIMEOUT,
        ToolCallStatus.CANCELLED,
        ToolCallStatus.LOST,
    }
)
"""The ways in which a call can have ended that reached its server."""
_SESSION_ENDED = frozenset({ToolCallStatus.LOST, ToolCallStatus.CANCELLED})
RETRIES_APART = 1000
_NUMBERS = re.compile(r"\d+(?:\.\d+)?")


def merged_effects(declared: Mapping[str, str], run_file: Mapping[str, ToolEffect]) -> dict[str, ToolEffect]:
    """The effects of the tools of a server: what it declares itself, unless the run file has another entry."""
    tool_effects: dict[str, ToolEffect] = {}
    for tool, name in declared.items() if ANY_TOOL not in run_file else ():
        for effect in get_args(ToolEffect):
            if effect == name:
                tool_effects[tool] = effect
    return {**tool_effects, **run_file}


def effect_of(effects: Mapping[str, ToolEffect], tool: str) -> ToolEffect:
    """The effect that a server declares for a tool."""
    return effects.get(tool, effects.get(ANY_TOOL, DEFAULT_EFFECT))


def rebuilding_calls(
    call: EarlierCall, others: Sequence[EarlierCall], effects: Mapping[str, ToolEffect], *, stateless: bool
) -> list[EarlierCall]:
    """The earlier calls of the record that rebuild the session of `call`, in their order.

    Sessions of different servers are separate, so only calls of the same server count.
    """
    if stateless or effect_of(effects, call.tool) == "pure":
        return []
    earlier = in_order(other for other in others if other.server == call.server and _place(other) < _place(call))
    return [other for other in earlier if other.status in RAN and effect_of(effects, other.tool) != "pure"]


def in_order(calls: Iterable[EarlierCall]) -> list[EarlierCall]:
    """Calls in the order of their places; if a call was made again, only the last one."""
    last: dict[tuple[int, int], EarlierCall] = {}
    for call in sorted(calls, key=lambda one: (one.turn, one.number)):
        last[_place(call)] = call
    return [last[place] for place in sorted(last)]


def _place(call: EarlierCall) -> tuple[int, int]:
    return (call.turn, call.number % RETRIES_APART)


def is_same(then: CallResult, now: CallResult) -> bool:
    """Whether two results mean the same: JSON by value, texts apart from white space at line ends, messages of failures
    apart from numbers."""
    if then.status != now.status:
        return False
    return normalised(then) == normalised(now)


def lost_its_session(then: CallResult, now: CallResult) -> bool:
    """Whether a call ended because its server, toolbox or session ended, although the recorded call did not."""
    return now.status in _SESSION_ENDED and then.status != now.status


def normalised(result: CallResult) -> str:
    """A text that is equal for results that mean the same."""
    text = "\n".join(line.rstrip() for line in result.text.strip().splitlines())
    if not result.works:
        return _NUMBERS.sub("#", text)
    value = json_of(text)
    return text if value is None else json.dumps(value, sort_keys=True)


def json_of(text: str) -> dict[str, object] | list[object] | None:
    """The JSON object or list that a text consists of."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = json.loads(text, parse_float=_number, parse_constant=str)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _number(text: str) -> float | int:
    """1.0 and 1 are the same number."""
    value = float(text)
    return int(value) if value.is_integer() else value


def judge(then: CallResult, runs: Sequence[CallResult]) -> Judgement:
    """The verdict on the runs of a replay. Their order does not matter."""
    if not runs:
        return Judgement(Verdict.CANNOT_RUN)
    working = sum(run.works for run in runs)
    if 0 < working < len(runs):
        return Judgement(Verdict.FLAKY, working)
    if then.works != (working > 0):
        return Judgement(Verdict.BROKEN if then.works else Verdict.FIXED)
    equal = sum(is_same(then, run) for run in runs)
    if equal == len(runs):
        return Judgement(Verdict.SAME)
    return Judgement(Verdict.FLAKY, equal) if equal else Judgement(Verdict.DIFFERENT)


def fault_of(then: CallResult, verdict: Verdict) -> str:
    """Whose fault a failed call was, as far as its replay shows: `policy`, `infrastructure`, or empty if it shows
    nothing. A call that fails alike in a fresh session is the policy's."""
    if then.works:
        return ""
    if verdict in (Verdict.FIXED, Verdict.FLAKY):
        return "infrastructure"
    return "policy" if verdict is Verdict.SAME else ""
