"""Defines the base class of all sections of the configuration, and the types of their fields.

Invariants:
- A section is frozen and refuses unknown keys.
- Text and booleans are never converted to numbers, so that a mistake in the file is reported and not silently
  corrected.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    field_validator,
)
from pydantic_core import CoreSchema

from agentrl.config.byte_sizes import parse_bytes
from agentrl.config.secrets import SecretRef, parse_reference
from agentrl.protocol.knob import Boundary
from agentrl.protocol.specs import Role


@dataclass(frozen=True, slots=True)
class Tunable:
    """Marks a field as a knob, which `agentrl tune` changes while the run is live.

    Type, range, default, unit and explanation of the knob are those of the field.
    """

    boundary: Boundary = "now"
    owner: Role | None = None
    """The group whose units apply it; None for the coordinator."""
    name: str = ""
    """The name of the knob, if it is not the key of the field."""
    scientific: bool = False
    looks_back: bool = False
    """The steward counts what a value would have changed over the last batches."""


NEXT_STEP = Tunable("next version", Role.TRAINER)
SCIENTIFIC_STEP = Tunable("next version", Role.TRAINER, scientific=True)
OF_BATCHES = replace(SCIENTIFIC_STEP, looks_back=True)
OF_GROUPS = Tunable("now", Role.STEWARD, scientific=True, looks_back=True)
"""For groups that are admitted from now on."""


def named(name: str, like: Tunable) -> Tunable:
    return replace(like, name=name)


@dataclass(frozen=True, slots=True)
class ReadBy:
    """The roles whose processes read a field. On a section: all its fields that have no mark of their own.

    A changed value replaces the units of these roles, and they get the variables that the value names.
    """

    roles: frozenset[Role] = frozenset()
    shown_to: frozenset[Role] = frozenset()
    """Roles that only report the value. If it is a reference to a secret, they do not get the variable."""
    live: bool = False
    """The processes read it again while they work, so a changed value replaces nothing."""
    within: Mapping[str, ReadBy] = field(default_factory=dict)
    """On a section that several fields have: fields of it that other roles read here."""


RoleName = Literal["steward", "sampler", "trainer", "toolbox", "engine"]


def read_by(
    *roles: RoleName,
    live: bool = False,
    shown_to: Iterable[RoleName] = (),
    within: Mapping[str, ReadBy] | None = None,
) -> ReadBy:
    return ReadBy(frozenset(map(Role, roles)), frozenset(map(Role, shown_to)), live, within or {})


NO_UNIT = read_by()
"""Only the coordinator, or a program that a command starts, reads the field."""


class Section(BaseModel):
    """Base of every section."""

    model_config = ConfigDict(
        # Every process of a run imports all sections, but no process validates each of them on its own.
        defer_build=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        validate_default=True,
        serialize_by_alias=True,
        validate_by_name=False,
    )

    @field_validator("*", mode="after")
    @classmethod
    def _can_be_handed_on(cls, value: Any) -> Any:
        """Refuse text that processes, messages or files cannot hold."""
        if not all(map(_can_be_written, _texts(value))):
            raise ValueError("must be text without NUL and without halves of characters: no process could receive it")
        return value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Add the explanations, as pydantic does for descriptions that it knows."""
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in explanations(cls).items():
            properties[cls.model_fields[name].alias or name]["description"] = text
        return schema


@functools.cache
def explanations(section: type[Section]) -> dict[str, str]:
    """The docstrings of the fields of a section, by name.

    pydantic would read the source of every section while it is imported, which costs each process 40 ms.
    """
    return field_docstrings(kind for kind in section.__mro__ if kind is not Section and issubclass(kind, Section))


def field_docstrings(kinds: Iterable[type]) -> dict[str, str]:
    """The docstrings under the fields of classes, by name. The first class wins, as in a method resolution order."""
    found: dict[str, str] = {}
    for kind in reversed(list(kinds)):
        for statement, text in itertools.pairwise(_class_body(kind)):
            match statement, text:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(str(words))):
                    found[name] = inspect.cleandoc(words)
    return found


def _class_body(kind: type) -> list[ast.stmt]:
    (parsed,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(parsed, ast.ClassDef)
    return parsed.body


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        yield from (each for each in value if isinstance(each, str))
    elif isinstance(value, dict):
        yield from (each for pair in value.items() for each in pair if isinstance(each, str))


def _can_be_written(text: str) -> bool:
    return not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text)


MOST_GPUS = 1000


def parse_gpus(value: object) -> object:
    """A whole number of devices, or a share of one."""
    wrong = ValueError(f"must be a whole number from 0 to {MOST_GPUS}, or a share such as 0.5")
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= MOST_GPUS:
        raise wrong
    # A whole number stays an integer in messages, which earlier host agents can read too.
    whole = int(value)
    if value != whole and value > 1:
        raise wrong
    return whole if value == whole else round(value, 3)


def parse_command(value: object) -> object:
    """Splits a command line in one string as a shell does; no shell runs it."""
    if not isinstance(value, str):
        return value
    try:
        return tuple(shlex.split(value))
    except ValueError as broken:
        raise ValueError(f"must be a command, but its quotes do not match ({broken})") from broken


def parse_words(value: object) -> object:
    """Accepts a single word in place of a list with one word."""
    return (value,) if isinstance(value, str) else value


def parse_env(value: object) -> object:
    """Converts numbers in `env` to text, as in a shell. Booleans are refused, because their text form is not
    obvious.
    """
    if not isinstance(value, dict):
        return value
    return {
        key: str(item) if isinstance(item, int | float) and not isinstance(item, bool) else item
        for key, item in value.items()
    }


Seconds = Annotated[float, Field(strict=True, gt=0, le=31_536_000)]
Number = Annotated[float, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=0, le=10_000)]
Gpus = Annotated[
    int | float,
    BeforeValidator(parse_gpus),
    WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1000}),
]
Positive = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Natural = Annotated[int, Field(strict=True, ge=0, le=1_000_000)]
Share = Annotated[Number, Field(ge=0, le=1)]
Least = Annotated[Number, Field(ge=0, le=1_000)]
LONGEST_S = 31_536_000
Bytes = Annotated[
    int,
    BeforeValidator(parse_bytes),
    Field(strict=True, ge=0),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "examples": ["512MiB"]}]}),
]
Command = Annotated[
    tuple[str, ...],
    BeforeValidator(parse_command),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
Words = Annotated[
    tuple[str, ...],
    BeforeValidator(parse_words),
    WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
Env = Annotated[
    dict[str, str],
    BeforeValidator(parse_env),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": ["string", "number"]}}),
]


def _secret(value: Any) -> SecretRef | None:
    if value is None or value == "" or isinstance(value, SecretRef):
        return value or None
    return parse_reference(value)


def _secret_or_url(value: Any) -> SecretRef | str:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return value
    secret = _secret(value)
    if secret is None:
        raise ValueError("must be a URL, or a reference to one: env:NAME or file:PATH")
    return secret


_REFERENCE_SCHEMA = {"type": "string", "pattern": "^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)?$"}
_AS_TEXT = PlainSerializer(lambda secret: "" if secret is None else str(secret), return_type=str)

Secret = Annotated[SecretRef | None, PlainValidator(_secret), _AS_TEXT, WithJsonSchema(_REFERENCE_SCHEMA)]
"""A reference to a secret, or None. A literal is refused, and the message does not repeat it."""

SecretOrUrl = Annotated[
    SecretRef | str, PlainValidator(_secret_or_url), _AS_TEXT, WithJsonSchema({"type": "string", "format": "uri"})
]
"""A URL that may itself be a secret, like the webhook URLs of chat services."""


def problems_in_one_of(section: Section, names: tuple[str, ...]) -> str:
    """The message if not exactly one of these fields is set; empty if exactly one is."""
    given = [name for name in names if getattr(section, name) not in (None, "", ())]
    if len(given) == 1:
        return ""
    return f"needs exactly one of {', '.join(names)}, but has {' and '.join(given) or 'none'}"
