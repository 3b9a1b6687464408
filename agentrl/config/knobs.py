"""The knobs of supervision.

Invariant: they are made from the fields of SupervisionTimes, so the two cannot differ.
"""

from __future__ import annotations

from typing import cast

from agentrl.config import introspection
from agentrl.config.knob import Boundary, Kind, Knob
from agentrl.config.run import nearest
from agentrl.config.supervision_times import SupervisionTimes
from agentrl.errors import UnknownNameError
from agentrl.protocol.rows import KnobValue

_KIND_OF: dict[object, Kind] = {float: "float", int: "int", bool: "bool", str: "str"}


def supervision_knobs() -> tuple[Knob, ...]:
    """One knob per supervision time."""
    return tuple(_knob_of(name) for name in SupervisionTimes.model_fields)


def times_with(times: SupervisionTimes, name: str, value: KnobValue) -> SupervisionTimes:
    """The supervision times with the knob `supervision.NAME` changed.

    Raises ConfigError if the value is not allowed, or contradicts the other times.
    """
    by_name = {knob.name: knob for knob in supervision_knobs()}
    knob = by_name.get(name)
    if knob is None:
        raise UnknownNameError(f"There is no knob {name!r}; {nearest(name, tuple(by_name))}")
    return times.changed(name.removeprefix("supervision."), cast(float, knob.check(value)))


def _knob_of(name: str) -> Knob:
    info = SupervisionTimes.model_fields[name]
    least, most = introspection.limits(introspection.Shape(info.annotation, info))
    extra = info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}
    return Knob(
        name=f"supervision.{name}",
        kind=_KIND_OF[info.annotation],
        default=info.default,
        help=info.description or "",
        unit="s" if name.endswith("_s") else "",
        minimum=least,
        maximum=most,
        boundary=cast(Boundary, extra.get("boundary", "now")),
    )
