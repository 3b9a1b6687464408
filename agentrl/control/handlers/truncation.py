"""Truncates the reports of units, so that rows and answers fit into messages.

Invariants:
- The row of a unit stays small whatever it reports, so an answer with the rows of all units can be sent.
- Text is truncated.
- Long lists keep their first entries.
- The value of a knob is kept whole or dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from msgspec.structs import replace

from agentrl.protocol.knob import Knob, KnobValue
from agentrl.protocol.messages import Bye, KnobPreviewed, UnitPart, UnitReport, Wait
from agentrl.protocol.messages.served_commands import UnitAnswer

SENTENCE = 500
REASON = 4000
NAME = 120
WHAT = 240
WAITS = 32
PROBLEMS = 8
PARTS = 32
KNOBS = 256
CHOICES = 64
METRICS = 1000


def text(sent: str, most: int) -> str:
    return sent if len(sent) <= most else sent[: most - 1] + "…"


def report(sent: UnitReport) -> UnitReport:
    return replace(
        sent,
        status=text(sent.status, SENTENCE),
        phase=text(sent.phase, NAME),
        serving=text(sent.serving, NAME),
        problems={text(of, NAME): text(why, SENTENCE) for of, why in itertools.islice(sent.problems.items(), PROBLEMS)},
        incomplete=text(sent.incomplete, SENTENCE),
        waits=tuple(map(_wait, sent.waits[:WAITS])),
        parts=tuple(map(_part, sent.parts[:PARTS])),
        knobs={name: value for name, value in itertools.islice(sent.knobs.items(), KNOBS) if _is_small(value)},
    )


def declarations(sent: tuple[Knob, ...]) -> tuple[Knob, ...]:
    return tuple(
        replace(
            each,
            help=text(each.help, SENTENCE),
            unit=text(each.unit, NAME),
            choices=tuple(text(choice, NAME) for choice in each.choices[:CHOICES]),
        )
        for each in sent[:KNOBS]
        if len(each.name) <= NAME and _is_small(each.default)
    )


def metrics(sent: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in itertools.islice(sent.items(), METRICS) if len(name) <= SENTENCE}


def bye(sent: Bye) -> Bye:
    return replace(sent, reason=text(sent.reason, SENTENCE))


def previewed(sent: KnobPreviewed) -> KnobPreviewed:
    return replace(sent, sentence=text(sent.sentence, SENTENCE), error=text(sent.error, SENTENCE))


def answer(sent: UnitAnswer) -> UnitAnswer:
    """Truncates an answer except for its body: the unit itself refuses to send a body that is too large."""
    return replace(sent, error=text(sent.error, REASON), hint=text(sent.hint, SENTENCE))


def _wait(sent: Wait) -> Wait:
    return replace(sent, who=text(sent.who, NAME), on=text(sent.on, NAME), what=text(sent.what, WHAT))


def _part(sent: UnitPart) -> UnitPart:
    name, state = text(sent.name, NAME), text(sent.state, NAME)
    return replace(
        sent,
        name=name,
        state=state,
        status=text(sent.status, SENTENCE),
        last_death=text(sent.last_death, SENTENCE),
        unhealthy=text(sent.unhealthy, SENTENCE),
        fullest=text(sent.fullest, NAME),
    )


def _is_small(value: KnobValue) -> bool:
    return not isinstance(value, str) or len(value) <= SENTENCE
