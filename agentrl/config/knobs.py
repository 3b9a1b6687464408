"""Derives the knobs of a run from the fields of its configuration that are marked as `Tunable`.

Invariants:
- A knob allows only values that its field allows.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Literal, TypeVar, cast

from agentrl.config import introspection
from agentrl.config.contradictions import nearest
from agentrl.config.field_types import Section, Tunable, explanations
from agentrl.config.run import RunConfig
from agentrl.config.supervision_times import SupervisionTimes
from agentrl.errors import UnknownNameError
from agentrl.protocol.knob import Knob, KnobValue
from agentrl.protocol.specs import Role

S = TypeVar("S", bound=Section)
_KINDS: dict[object, str] = {float: "float", int: "int", bool: "bool", str: "str"}


def unit_knobs(config: RunConfig, owner: Role) -> dict[str, Knob]:
    """The knobs that the units of this group apply, by name, with the values of the configuration as defaults."""
    return {knob.name: knob for knob in (*_marked(config, owner), *_of_parts(config, owner))}


def with_values(section: S, owner: Role, values: Mapping[str, KnobValue]) -> S:
    """The section with these values of knobs of the owner, by their names. Whether the values contradict each other is
    not checked."""
    changed: dict[str, object] = {}
    for name, field in type(section).model_fields.items():
        if mark := _mark(section, name):
            if mark.owner is owner and (mark.name or name) in values:
                changed[name] = values[mark.name or name]
        elif introspection.Shape(field.annotation).section is not None:
            part = getattr(section, name)
            if isinstance(part, Section) and (replaced := with_values(part, owner, values)) is not part:
                changed[name] = replaced
    return section.model_copy(update=changed) if changed else section


def supervision_knobs() -> tuple[Knob, ...]:
    """One knob per supervision time. The coordinator applies them."""
    times, usual = SupervisionTimes(), Tunable()
    return tuple(_knob(times, name, _mark(times, name) or usual, "supervision.") for name in type(times).model_fields)


def times_with(times: SupervisionTimes, name: str, value: KnobValue) -> SupervisionTimes:
    """The supervision times with the knob `supervision.NAME` changed.

    Raises ConfigError if the value is not allowed, or contradicts the other times.
    """
    by_name = {knob.name: knob for knob in supervision_knobs()}
    knob = by_name.get(name)
    if knob is None:
        raise UnknownNameError(f"There is no knob {name!r}; {nearest(name, tuple(by_name))}")
    return times.changed(name.removeprefix("supervision."), cast(float, knob.check(value)))


def _marked(section: Section, owner: Role) -> Iterator[Knob]:
    """Reads no other fields, because the fields that a role reads are those whose change replaces its units."""
    for name, field in type(section).model_fields.items():
        if mark := _mark(section, name):
            if mark.owner is owner:
                yield _knob(section, name, mark)
        elif introspection.Shape(field.annotation).section is not None:
            value = getattr(section, name)
            if isinstance(value, Section):
                yield from _marked(value, owner)


def _of_parts(config: RunConfig, owner: Role) -> Iterator[Knob]:
    """The knobs of single environments and stages: `shop.difficulty_least`, `stage_1.score`."""
    parts: list[tuple[str, Section | None]] = [
        (f"{name}.", environment.difficulty) for name, environment in config.environments.items()
    ]
    parts += [(f"stage_{number}.", stage.until) for number, stage in enumerate(config.curriculum, 1)]
    for prefix, section in parts:
        for name in type(section).model_fields if section is not None else ():
            if section is not None and (mark := _mark(section, name)) and mark.owner is owner:
                yield _knob(section, name, mark, prefix)


def _mark(section: Section, name: str) -> Tunable | None:
    return next((each for each in type(section).model_fields[name].metadata if isinstance(each, Tunable)), None)


def _knob(section: Section, name: str, mark: Tunable, prefix: str = "") -> Knob:
    field = type(section).model_fields[name]
    least, most = introspection.limits(introspection.Shape(field.annotation, field))
    choices = typing.get_args(field.annotation) if typing.get_origin(field.annotation) is Literal else ()
    return Knob(
        name=prefix + (mark.name or name),
        kind="choice" if choices else _KINDS[field.annotation],
        default=getattr(section, name),
        help=" ".join(explanations(type(section)).get(name, "").split()),
        unit="s" if name.endswith("_s") else "",
        minimum=least,
        maximum=most,
        choices=choices,
        boundary=mark.boundary,
        scientific=mark.scientific,
        looks_back=mark.looks_back,
        owner=mark.owner.value if mark.owner else "",
    ).verified()
