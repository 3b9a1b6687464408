"""Formats the consequences of an effect as sentences for consent dialogs and previews, numbers first."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.protocol.effects import Effect
from agentrl.protocol.rows import UnitState
from tui.model.mirror import Mirror
from tui.model.styled_text import Line, Span, Tone, span, wrapped

_NAMED = 8


def effect_lines(effect: Effect, mirror: Mirror, width: int) -> tuple[Line, ...]:
    """The consequences, numbers first."""
    lines = list[Line]()
    again = set(effect.restarts)
    for names, returning, one, many, tone in (
        (effect.kills, False, "unit is killed", "units are killed", Tone.BAD),
        (effect.kills, True, "unit is killed and started again", "units are killed and started again", Tone.BAD),
        (effect.drains, False, "unit finishes its work and ends", "units finish their work and end", Tone.WARN),
        (effect.drains, True, "unit ends and is started again", "units end and are started again", Tone.WARN),
        (effect.starts, False, "unit is started", "units are started", Tone.BUSY),
    ):
        chosen = [name for name in names if (name in again) is returning]
        if chosen:
            shown = ", ".join(chosen[:_NAMED]) + (f" and {len(chosen) - _NAMED} more" if len(chosen) > _NAMED else "")
            lines += _wrapped(f"{len(chosen)} {one if len(chosen) == 1 else many}: {shown}", tone, width)
    for sentence in _strength_meanwhile(effect, mirror):
        lines += _wrapped(sentence, Tone.PLAIN, width)
    for sentences, tone in (
        (effect.loses, Tone.BAD),
        (effect.displaces, Tone.WARN),
        (effect.changes, Tone.PLAIN),
        (effect.notes, Tone.DIM),
    ):
        for sentence in sentences:
            lines += _wrapped(sentence, tone, width)
    return tuple(lines or [(Span("It changes nothing.", Tone.DIM),)])


def effect_sentence(effect: Effect, mirror: Mirror) -> str:
    lines = effect_lines(effect, mirror, 400)
    return "; ".join("".join(part.text for part in line) for line in lines)


def _strength_meanwhile(effect: Effect, mirror: Mirror) -> Iterator[str]:
    """How many units of each group stay ready."""
    ending = [row for name in (*effect.drains, *effect.kills) if (row := mirror.unit(name)) is not None]
    for name in sorted({row.group for row in ending}):
        group = mirror.group(name)
        if group is not None:
            fewer = sum(row.group == name and row.state is UnitState.READY for row in ending)
            yield f"{name}: {group.ready} ready now, {max(0, group.ready - fewer)} then"


def _wrapped(sentence: str, tone: Tone, width: int) -> list[Line]:
    return [(Span(part, tone),) for part in wrapped(span(sentence).text, width)]
