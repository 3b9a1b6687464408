"""Joins the answers of all units that serve a command: rows of queries, effects of previews, results of changes.

Invariants:
- A unit that did not answer is named with the reason: beside the rows of a query, in the notes of a preview, in the
  lines of a result.
- If no unit answered, the first refusal is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from agentrl.errors import AgentrlError, NoCoordinatorError, UnavailableError, UnknownNameError, WaitTimeoutError
from agentrl.formatting.sandbox_text import missing_units
from agentrl.protocol.commands import CommandSpec
from agentrl.protocol.data_changes import Done
from agentrl.protocol.effects import Effect
from agentrl.protocol.tool_commands import JoinedRows, MissingUnit
from agentrl.protocol.wire import decode_as, raw
from agentrl.supervision.unit_slots import Slot

NOT_ANSWERED = (UnavailableError, WaitTimeoutError, NoCoordinatorError)


class Answers(NamedTuple):
    """The answers of the units to one command."""

    given: list[msgspec.Raw]
    refused: list[AgentrlError]
    missing: list[MissingUnit]


def sorted_out(
    slots: Sequence[Slot],
    answers: Sequence[msgspec.Raw | BaseException],
    missing: Sequence[MissingUnit],
    *,
    final: bool,
) -> Answers:
    """Sorts the answers by kind. `final`: the command is being carried out. Then a unit without an answer must get the
    request again, so its error is raised.
    """
    sorted_answers = Answers([], [], list(missing))
    left_out: type[AgentrlError] = UnknownNameError if final else AgentrlError
    for slot, answer in zip(slots, answers, strict=True):
        if not isinstance(answer, BaseException):
            sorted_answers.given.append(answer)
        elif not isinstance(answer, left_out):
            raise answer
        elif isinstance(answer, NOT_ANSWERED):
            sorted_answers.missing.append(MissingUnit(slot.unit, _without_name(answer.message, slot)))
        else:
            sorted_answers.refused.append(answer)
    return sorted_answers


def _without_name(message: str, slot: Slot) -> str:
    return message.removeprefix(slot.name).removeprefix(slot.unit).strip(" .")


def joined(spec: CommandSpec, answers: Answers, *, preview: bool) -> msgspec.Raw:
    """One joined answer of all units. Raises the first refusal if no unit gave an answer."""
    given, refused, missing = answers
    if not given:
        raise _refusal(spec, refused, missing)
    if not spec.mutates:
        return raw(JoinedRows([row for rows in given for row in decode_as(list[msgspec.Raw], rows)], missing))
    left_out = (f"without {missing_units(missing)}",) if missing else ()
    if preview:
        effects = [decode_as(Effect, answer) for answer in given]
        sums = {name: _chained(effects, name) for name in _SENTENCES}
        return raw(Effect(**sums | {"notes": (*sums["notes"], *left_out)}))
    done = [decode_as(Done, answer) for answer in given]
    under_way = "; ".join(each.under_way for each in done if each.under_way)
    results = {name: value for each in done for name, value in each.result.items()}
    return raw(Done((*_chained(done, "lines"), *left_out), results, under_way))


_SENTENCES = ("starts", "drains", "kills", "changes", "loses", "notes")


def _chained(parts: Sequence[object], name: str) -> tuple[str, ...]:
    return tuple(line for part in parts for line in getattr(part, name))


def _refusal(spec: CommandSpec, refused: Sequence[AgentrlError], missing: Sequence[MissingUnit]) -> AgentrlError:
    if not refused:
        hint = "`agentrl status` shows their state."
        return UnavailableError(f"`agentrl {spec.cli}` got no answer from {missing_units(missing)}.", hint=hint)
    first = refused[0]
    if missing:
        # The named object may be on a unit that did not answer.
        first.hint = f"Not asked: {missing_units(missing)}. {first.hint}".rstrip()
    return first
