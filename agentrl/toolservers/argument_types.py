"""The types that arguments of tools may have: each gives a JSON schema, and makes the Python value of an argument.

They are made from the source (`type_hints.py`), so `agentrl config check` knows the schema without running the file.

Invariants:
- What fits the schema is converted; everything else raises ArgumentError, which names the place in the argument.
- Nothing is guessed: the text "3" is not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.toolservers.user_names import ToolError

Namespace = Callable[[str], Any]
"""Finds a class of the file by its name."""


class ArgumentError(ToolError):
    """An argument does not have its type."""


class ArgumentType(Protocol):
    def schema(self) -> dict[str, Any]: ...

    def convert(self, value: Any, place: str, classes: Namespace) -> Any:
        """The value for the function. Raises ArgumentError."""
        ...


def _refuse(place: str, wanted: str, value: Any) -> ArgumentError:
    shown = repr(value)
    return ArgumentError(f"{place} must be {wanted}, got {shown if len(shown) <= 80 else shown[:77] + '...'}")


@dataclass(frozen=True)
class Scalar:
    """`str`, `int`, `float`, `bool` or `None`."""

    name: str

    def schema(self) -> dict[str, Any]:
        return {"type": _JSON_NAMES[self.name]}

    def convert(self, value: Any, place: str, classes: Namespace) -> Any:
        match self.name, value:
            case "bool", bool() as found:
                return found
            case (("int" | "float"), bool()):
                pass
            case "int", int() as found:
                return found
            case "int", float() as found if found.is_integer():
                return int(found)
            case "float", int() | float() as found:
                return float(found)
            case ("str", str()) | ("None", None):
                return value
        raise _refuse(place, _WORDS[self.name], value)


_JSON_NAMES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "None": "null"}
_WORDS = {"str": "a text", "int": "an integer", "float": "a number", "bool": "true or false", "None": "null"}


@dataclass(frozen=True)
class Anything:
    def schema(self) -> dict[str, Any]:
        return {}

    def convert(self, value: Any, place: str, classes: Namespace) -> Any:
        return value


@dataclass(frozen=True)
class Choice:
    """One of some constants: a `Literal`, or an `Enum` by its values."""

    values: tuple[Any, ...]
    enum: str = ""
    """The class of an Enum."""
    by_name: bool = False
    """The values are the names of its members."""

    def schema(self) -> dict[str, Any]:
        names = {_JSON_NAMES.get("None" if value is None else type(value).__name__, "") for value in self.values}
        return {"enum": list(self.values), **({"type": names.pop()} if len(names) == 1 else {})}

    def convert(self, value: Any, place: str, classes: Namespace) -> Any:
        # True equals 1, but is another value.
        for each in self.values:
            if each == value and isinstance(each, bool) == isinstance(value, bool):
                if not self.enum:
                    return each
                kind = classes(self.enum)
                return kind[each] if self.by_name else kind(each)
        raise _refuse(place, f"one of {', '.join(map(repr, self.values))}", value)


@dataclass(frozen=True)
class Many:
    """A `list`, `set`, or `tuple` of any length."""

    item: ArgumentType
    kind: type = list

    def schema(self) -> dict[str, Any]:
        items = self.item.schema()
        found: dict[str, Any] = {"type": "array", **({"items": items} if items else {})}
        return found | ({"uniqueItems": True} if self.kind in (set, frozenset) else {})

    def convert(self, value: Any, place: str, classes: Namespace) -> Any:
        if not isinstance(value, list):
            raise _refuse(place, "a list", value)
        found = [self.item.convert(each, f"{place}[{at}]", classes) for at, each in enumerate(value)]
        try:
            return self.kind(found)
        except TypeError:
            raise ArgumentError(f"{place} must have items that can be compared") from None


@dataclass(frozen=True)
class Fixed:
    """A `tuple` with a type for each place."""

    items: tuple[ArgumentType, ...]

    def schema(self) -> dict[str, Any]:
        count = len(self.items)
        return {
            "type": "array",
            "prefixItems": [item.schema() for item in self.items],
            "minItems": count,
            "maxItems": count,
        }

    def convert(self, value: Any, place: str, classes: Namespace) -> Any:
        if not isinstance(value, list) or len(value) != len(self.items):
            raise _refuse(place, f"a list of {len(self.items)}", value)
        pairs = enumerate(zip(self.items, value, strict=True))
        return tuple(item.convert(each, f"{place}[{at}]", classes) for at, (item, each) in pairs)


@dataclass(frozen=True)
class Mapped:
    """A `dict` with texts as keys."""

    item: ArgumentType

    def schema(self) -> dict[str, Any]:
        items = self.item.schema()
        return {"type": "object", **({"additionalProperties": items} if items else {})}

    def convert(self, value: Any, place: str, classes: Namespace) -> Any:
        if not isinstance(value, dict):
            raise _refuse(place, "an object", value)
        return {key: self.item.convert(each, f"{place}.{key}", classes) for key, each in value.items()}


@dataclass(frozen=True)
class OneOf:
    """A union; the first type that fits."""

    types: tuple[ArgumentType, ...]

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [each.schema() for each in self.types]}

    def convert(self, value: Any, place: str, classes: Namespace) -> Any:
        refusals: list[str] = []
        # An integer also fits a number, and should stay an integer if both are allowed.
        for each in sorted(self.types, key=lambda kind: kind == Scalar("float")):
            try:
                return each.convert(value, place, classes)
            except ArgumentError as refused:
                refusals.append(str(refused))
        raise ArgumentError("; or ".join(refusals))


@dataclass(frozen=True)
class Field:
    """A parameter of a function, or a field of a class."""

    name: str
    type: ArgumentType
    description: str = ""
    required: bool = True
    default: Any = None
    """The default, used only for the schema; JSON or None."""

    def schema(self) -> dict[str, Any]:
        found = self.type.schema()
        if self.description:
            found["description"] = self.description
        return found if self.required or self.default is None else {**found, "default": self.default}


@dataclass(frozen=True)
class Fields:
    """A dataclass or a TypedDict of the file."""

    name: str
    fields: tuple[Field, ...]
    is_dict: bool = False

    def schema(self) -> dict[str, Any]:
        return schema_of(self.fields)

    def convert(self, value: Any, place: str, classes: Namespace) -> Any:
        if not isinstance(value, dict):
            raise _refuse(place, "an object", value)
        converted = converted_fields(self.fields, value, place, classes)
        return converted if self.is_dict else classes(self.name)(**converted)


def schema_of(fields: Sequence[Field]) -> dict[str, Any]:
    required = [each.name for each in fields if each.required]
    found: dict[str, Any] = {"type": "object", "properties": {each.name: each.schema() for each in fields}}
    return found | ({"required": required} if required else {})


def converted_fields(
    fields: Sequence[Field], values: Mapping[str, Any], place: str, classes: Namespace
) -> dict[str, Any]:
    """The converted values by name; missing ones stay missing. `place` is empty for the arguments of a function."""
    above = f"{place}." if place else ""
    known = {each.name: each for each in fields}
    for name in values:
        if name not in known:
            what = f"{place} has" if place else "there is"
            raise ArgumentError(f"{what} no {name!r}; known are: {', '.join(known) or 'none'}")
    for each in fields:
        if each.required and each.name not in values:
            raise ArgumentError(f"{above}{each.name} is missing")
    return {name: known[name].type.convert(value, f"{above}{name}", classes) for name, value in values.items()}
