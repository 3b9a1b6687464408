"""What a knob is: a setting that may change while the run is live.

A knob is declared once: at its field of the configuration, or by the unit that owns it. Parsing, checking and help
follow from the declaration. The command line parses values by it, so this module imports only what is light.
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

from agentrl.errors import ConfigError

KnobValue = float | int | str | bool | None

Boundary = Literal["now", "next claim", "next version", "restart"]
"""When a new value takes effect."""
_WORDS = {"float": "a number", "int": "a whole number", "bool": "true or false", "str": "text"}


class Knob(msgspec.Struct, frozen=True, omit_defaults=True):
    """The declaration of one knob, in memory, in messages and in the journal."""

    name: str
    kind: str
    """float, int, bool, str, choice."""
    default: KnobValue
    """The value of the run file."""
    help: str = ""
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    boundary: str = "now"
    scientific: bool = False
    """True if results before and after a change are not comparable: a change begins a new segment."""
    looks_back: bool = False
    """The steward counts what a value would have changed over the last batches, for the preview."""
    owner: str = ""
    """The group whose units apply it; empty for the coordinator. A unit leaves it empty for its own group."""

    def verified(self) -> Knob:
        """The same knob. Raises ConfigError if the declaration contradicts itself or its kind is not known here."""
        if self.kind not in (*_WORDS, "choice") or (self.kind == "choice") != bool(self.choices):
            raise ConfigError(f"The knob {self.name} cannot be of the kind {self.kind!r} with these choices.")
        if self.boundary not in get_args(Boundary):
            allowed = ", ".join(repr(each) for each in get_args(Boundary))
            raise ConfigError(f"The boundary of the knob {self.name} must be one of {allowed}, not {self.boundary!r}.")
        self.check(self.default)
        return self

    @property
    def allowed(self) -> str:
        """The allowed values, in words that follow "must be"."""
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
        """A checked value from text. Raises ConfigError that names the allowed values."""
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
        """The value in the type of the knob. Raises ConfigError that names the allowed values."""
        if self.kind in ("float", "int"):
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._refusal(value)
            if self.kind == "int" and value != int(value if abs(value) < 1e18 else 0):
                raise self._refusal(value)
            # These comparisons are false for a nan, so it is refused.
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


def plain_value(value: KnobValue) -> str:
    """A setting's value as people write it: `true`, and 1000000 rather than 1e+06 or 1000000.0."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.15g}" if isinstance(value, float) else str(value)
