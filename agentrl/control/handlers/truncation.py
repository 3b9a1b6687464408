"""What a unit says of itself, cut to what a row, a message and a person can hold.

Invariant: whatever a unit says, its row stays small and the answers that hold the rows of all units can be sent. Text
is clipped, of many things the first are kept; a knob's value is kept whole or not at all.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from msgspec.structs import replace

from agentrl.protocol.messages import Bye, KnobDeclaration, KnobPreviewed, UnitReport, Wait
from agentrl.protocol.messages.served_commands import UnitAnswer
from agentrl.protocol.rows import KnobValue

SENTENCE = 500
REASON = 4000
NAME = 120
WHAT = 240
WAITS = 32
KNOBS = 256
CHOICES = 64
METRICS = 1000


def text(said: str, most: int) -> str:
    return said if len(said) <= most else said[: most - 1] + "…"


def report(said: UnitReport) -> UnitReport:
    return replace(
        said,
        status=text(said.status, SENTENCE),
        phase=text(said.phase, NAME),
        serving=text(said.serving, NAME),
        waits=tuple(map(_wait, said.waits[:WAITS])),
        knobs={name: value for name, value in itertools.islice(said.knobs.items(), KNOBS) if _is_small(value)},
    )


def declarations(said: tuple[KnobDeclaration, ...]) -> tuple[KnobDeclaration, ...]:
    return tuple(
        replace(
            each,
            help=text(each.help, SENTENCE),
            unit=text(each.unit, NAME),
            choices=tuple(text(choice, NAME) for choice in each.choices[:CHOICES]),
        )
        for each in said[:KNOBS]
        if len(each.name) <= NAME and _is_small(each.default)
    )


def metrics(said: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in itertools.islice(said.items(), METRICS) if len(name) <= SENTENCE}


def bye(said: Bye) -> Bye:
    return replace(said, reason=text(said.reason, SENTENCE))


def previewed(said: KnobPreviewed) -> KnobPreviewed:
    return replace(said, sentence=text(said.sentence, SENTENCE), error=text(said.error, SENTENCE))


def answer(said: UnitAnswer) -> UnitAnswer:
    """The body is as large as a message may be; the unit itself refuses to send more."""
    return replace(said, error=text(said.error, REASON), hint=text(said.hint, SENTENCE))


def _wait(said: Wait) -> Wait:
    return replace(said, who=text(said.who, NAME), on=text(said.on, NAME), what=text(said.what, WHAT))


def _is_small(value: KnobValue) -> bool:
    return not isinstance(value, str) or len(value) <= SENTENCE
