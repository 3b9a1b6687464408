"""What one knob is: a setting that may change while the run lives.

Invariants: a knob is declared once and everything else (parsing, checking, help) follows from the declaration; light
imports only, because the command line parses by it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

from agentrl.errors import ConfigError
from agentrl.protocol.rows import KnobRow, KnobValue, plain_value

Kind = Literal["float", "int", "bool", "str", "choice"]
Boundary = Literal["now", "next claim", "next version", "restart"]
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
        if self.boundary not in get_args(Boundary):
            raise ValueError(f"knob {self.name}: there is no boundary {self.boundary!r}")
        self.check(self.default)

    @property
    def allowed(self) -> str:
        """What a value must be, in words."""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        least, most = ("" if bound is None else plain_value(bound) for bound in (self.minimum, self.maximum))
        bounds = {
            (False, False): "",
            (True, False): f" of at least {least}",
            (False, True): f" of at most {most}",
            (True, True): f" from {least} to {most}",
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


def knob_of(row: KnobRow) -> Knob:
    """The declaration that a row shows."""
    if row.kind not in get_args(Kind) or row.boundary not in get_args(Boundary):
        raise ConfigError(f"The knob {row.name} is of a kind that this version does not know.")
    return Knob(
        name=row.name,
        kind=cast(Kind, row.kind),
        default=row.default,
        help=row.help,
        unit=row.unit,
        minimum=row.minimum,
        maximum=row.maximum,
        choices=row.choices,
        boundary=cast(Boundary, row.boundary),
        scientific=row.scientific,
        owner=row.owner,
    )
