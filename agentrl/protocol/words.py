"""How each argument of a command is written on a line: declared beside the field, read and written by `grammar`.

A field without a declaration gets one by its type: a required text is an argument, a first list takes the remaining
words, a truth is a flag, anything else is an option named like the field.

Invariant: what a form writes it reads back as the same value.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl.errors import UsageError

if TYPE_CHECKING:
    from agentrl.protocol.message_base import Args

Values = dict[str, Any]


class Place(enum.Enum):
    ARGUMENT = enum.auto()
    """One word at its place: `scale GROUP N`."""
    REST = enum.auto()
    """All remaining words."""
    OPTION = enum.auto()
    """`--name VALUE`; of a list, once for each item."""
    FLAG = enum.auto()
    """`--name`, for true."""
    PART = enum.auto()
    """The word of another field contains it."""
    PROGRAM = enum.auto()
    """Only programs give it; a line leaves it at its default."""


class Form:
    """Translates between the text of a word and the values of one or more fields."""

    def value(self, text: str) -> Any:
        """Raises ValueError with words that follow the text: `is not a number`."""
        return text

    def text(self, value: Any) -> str:
        return str(value)

    def read(self, text: str, values: Values, field: str, args: type[Args]) -> None:
        """Add what the text says to the values of an options or an argument."""
        values[field] = self.value(text)

    def write(self, args: Args, field: str) -> str | None:
        """The text for these arguments; None leaves the word out."""
        return self.text(getattr(args, field))


class Whole(Form):
    def value(self, text: str) -> int:
        try:
            return int(text)
        except ValueError:
            raise ValueError("is not a whole number") from None


class Number(Form):
    def value(self, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise ValueError("is not a number")
        return number

    def text(self, value: float) -> str:
        return shortest(value)


class Choice(Form):
    def __init__(self, choices: Iterable[str]) -> None:
        self.choices = tuple(choices)

    def value(self, text: str) -> str:
        if text not in self.choices:
            raise ValueError(f"is not one of {', '.join(self.choices)}")
        return text


class Duration(Form):
    """Seconds, as `90s`, `15m`, `2h` or `1d`."""

    def value(self, text: str) -> float:
        return seconds(text)

    def text(self, value: float) -> str:
        return f"{shortest(value)}s"


class JsonObject(Form):
    def value(self, text: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError as broken:
            raise ValueError(f"is not JSON: {broken}") from None
        if not isinstance(value, dict):
            raise ValueError("is not a JSON object")
        return value

    def text(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)


class SettingValue(Form):
    """The value of a knob. Who knows the knob reads the text by its kind; without it, `2` is a number and `true` a
    truth, and text that `text` would not write for them stays text."""

    def value(self, text: str) -> Any:
        if text in ("true", "false"):
            return text == "true"
        for kind in (int, float):
            try:
                value = kind(text)
            except ValueError:
                continue
            if math.isfinite(value) and self.text(value) == text:
                return value
        return text

    def text(self, value: Any) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        return shortest(value) if isinstance(value, float) else str(value)


class Count(Form):
    """A number of units, or a difference: `4`, `+1`, `-1`. It fills `to` or `by`."""

    def read(self, text: str, values: Values, field: str, args: type[Args]) -> None:
        body = text[1:] if text[:1] in ("+", "-") else text
        if not (body.isascii() and body.isdecimal() and len(body) <= 9):
            raise UsageError(
                f"{text!r} is not a number of units.", hint="Write 4 for four of them, +1 or -1 for one more or fewer."
            )
        values["to" if body == text else "by"] = int(text)

    def write(self, args: Any, field: str) -> str | None:
        return f"{args.to}" if args.by is None else f"{args.by:+d}"


class Incarnation(Form):
    """A unit, or an incarnation of it: `web-0`, `web-0.7`."""

    def read(self, text: str, values: Values, field: str, args: type[Args]) -> None:
        unit, dot, number = text.rpartition(".")
        if not dot:
            values |= {field: text, "incarnation": 0}
        elif unit and number.isascii() and number.isdecimal():
            values |= {field: unit, "incarnation": int(number)}
        else:
            raise ValueError("is not an incarnation such as web-0.7")

    def write(self, args: Any, field: str) -> str | None:
        name: str = getattr(args, field)
        return f"{name}.{args.incarnation}" if args.incarnation else name


class ServerOrSandbox(Form):
    """A tool server, or the whole id of a sandbox, which has a slash."""

    def read(self, text: str, values: Values, field: str, args: type[Args]) -> None:
        values["sandbox" if "/" in text else "server"] = text

    def write(self, args: Any, field: str) -> str | None:
        name: str = args.server or args.sandbox
        return name


CANARY = "canary"
_AGE = re.compile(r"\d+(\.\d+)?[smhdw]", re.ASCII)
"""An age in the language of filters."""


class Since(Form):
    """`canary`, or a time such as `2h`, which becomes a condition of the filter."""

    def read(self, text: str, values: Values, field: str, args: type[Args]) -> None:
        if text == CANARY:
            values["since_canary"] = True
            return
        if not _AGE.fullmatch(text):
            raise UsageError(
                f"{text!r} is neither an age nor `{CANARY}`.", hint=f"Write 90s, 15m, 2h, 1d, 1w or {CANARY}."
            )
        condition = f"{args.time_of_since}>-{text}"  # type: ignore[attr-defined]
        values["filter"] = f"({values['filter']}) and {condition}" if values.get("filter") else condition

    def write(self, args: Any, field: str) -> str | None:
        return CANARY if args.since_canary else None


@dataclass(frozen=True, slots=True)
class Word:
    """The declaration of one field. What it leaves open follows from the type of the field."""

    place: Place | None = None
    metavar: str = ""
    names: tuple[str, ...] = ()
    """Of an option or a flag: `("--environment", "-e")`."""
    form: Form | None = None
    required: bool | None = None
    """Whether a line must give it, if that differs from the field."""


def argument(metavar: str = "", form: Form | None = None, *, required: bool | None = None) -> Word:
    return Word(Place.ARGUMENT, metavar, form=form, required=required)


def rest(metavar: str = "", *, required: bool | None = None) -> Word:
    return Word(Place.REST, metavar, required=required)


def option(*names: str, metavar: str = "", form: Form | None = None, required: bool | None = None) -> Word:
    return Word(Place.OPTION, metavar, names, form, required)


PART = Word(Place.PART)
PROGRAM = Word(Place.PROGRAM)


def shortest(value: float) -> str:
    """The shortest text that is read as this number: `2`, `0.5`, `1000000`."""
    short = f"{value:.15g}"
    return short if float(short) == value else repr(value)


def seconds(text: str) -> float:
    """Parses `90`, `90s`, `15m`, `2h`, `1d`. Raises UsageError."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    body, factor = (text[:-1], units[text[-1]]) if text[-1:] in units else (text, 1.0)
    try:
        value = float(body) * factor
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise UsageError(f"{text!r} is not a duration.", hint="Write 90s, 15m, 2h or 1d.")
    return value
