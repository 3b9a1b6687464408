"""Knobs: settings that may change while the run lives. What may be set, to what, and when it takes effect.

Invariants: a knob is declared once and everything else (parsing, checking, help) follows from the declaration; the
knobs of supervision are made from the fields of SupervisionTimes, so the two cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from agentrl.config import shape
from agentrl.config.run import nearest
from agentrl.config.times import Boundary, SupervisionTimes
from agentrl.errors import ConfigError, UnknownNameError
from agentrl.protocol.rows import KnobValue

Kind = Literal["float", "int", "bool", "str", "choice"]
_KIND_OF: dict[object, Kind] = {float: "float", int: "int", bool: "bool", str: "str"}
_WORDS: dict[str, str] = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """The declaration of one knob."""

    name: str
    kind: Kind
    default: KnobValue
    help: str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    boundary: Boundary = "now"
    scientific: bool = False
    """True if results before and after a change are not comparable: a change begins a new segment."""
    owner: str = ""
    """The group whose units apply it; empty for the coordinator."""

    def __post_init__(self) -> None:
        if (self.kind == "choice") != bool(self.choices):
            raise ValueError(f"knob {self.name}: choices belong to the kind choice")
        self.check(self.default)

    @property
    def allowed(self) -> str:
        """What a value must be, in words."""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        bounds = {
            (False, False): "",
            (True, False): f" of at least {self.minimum}",
            (False, True): f" of at most {self.maximum}",
            (True, True): f" from {self.minimum} to {self.maximum}",
        }[self.minimum is not None, self.maximum is not None]
        return f"{_WORDS[self.kind]}{bounds}{f' ({self.unit})' if self.unit else ''}"

    def parse(self, text: str) -> KnobValue:
        """From the command line to a checked value. Raises ConfigError with what is allowed."""
        value: KnobValue = text
        try:
            if self.kind == "int":
                value = int(text)
            elif self.kind == "float":
                value = float(text)
        except ValueError:
            raise self._refusal(text) from None
        if self.kind == "bool":
            word = text.strip().lower()
            if word not in ("true", "false", "on", "off", "yes", "no"):
                raise self._refusal(text)
            value = word in ("true", "on", "yes")
        return self.check(value)

    def check(self, value: KnobValue) -> KnobValue:
        """The value in the knob's own type. Raises ConfigError with what is allowed."""
        if self.kind in ("float", "int"):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._refusal(value)
            if self.kind == "int" and value != int(value if abs(value) < 1e18 else 0):
                raise self._refusal(value)
            # Written so that a nan fails, too.
            low, high = self.minimum, self.maximum
            if not ((low is None or value >= low) and (high is None or value <= high) and abs(value) < 1e18):
                raise self._refusal(value)
            return int(value) if self.kind == "int" else float(value)
        if self.kind == "bool":
            if not isinstance(value, bool):
                raise self._refusal(value)
            return value
        if not isinstance(value, str) or (self.choices and value not in self.choices):
            raise self._refusal(value)
        return value

    def _refusal(self, value: object) -> ConfigError:
        return ConfigError(f"{self.name} must be {self.allowed}, not {value!r}.")


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
    least, most = shape.limits(shape.Shape(info.annotation, info))
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
