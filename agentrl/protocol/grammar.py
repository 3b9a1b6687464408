"""Commands as words of a command line: `words` writes them, `parse` reads them. Both follow the declarations.

Invariants:
- `parse(words(command, args))` has the same command with the same arguments, for every command that a line can express.
- `parse` is strict: an unknown word or option, a missing or a surplus argument is refused with a sentence.
"""

from __future__ import annotations

import difflib
import functools
import re
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from agentrl.errors import UsageError
from agentrl.protocol.commands import COMMANDS, CommandSpec
from agentrl.protocol.message_base import Args
from agentrl.protocol.words import Choice, Form, JsonObject, Number, Place, Values, Whole, Word

SHARED: dict[str, str] = {"--run": "NAME", "--key": "FILE", "--json": "", "--no-color": ""}
"""Options that every command of the shell has, with the metavar of those that have a value."""
ACTING: dict[str, str] = {"--yes": "", "-y": "", "--no-wait": "", "--dry-run": "", "--timeout": "SECONDS"}
"""Options that the shell has for every command that changes something."""
_OPTION = re.compile(r"-(-[a-z]|[a-zA-Z])")
"""The beginning of an option. `-1` is an argument."""


@dataclass(frozen=True, slots=True)
class Line:
    """What a line says."""

    spec: CommandSpec
    args: Args
    shared: dict[str, str]
    """Shared options with their values; an empty text if they have none."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One field of the arguments with the way in which it is written."""

    field: str
    place: Place
    metavar: str
    names: tuple[str, ...]
    form: Form
    required: bool
    many: bool
    default: Any

    @property
    def usage(self) -> str:
        """`GROUP`, `[ID...]`, `--note TEXT`."""
        shown = f"{self.metavar}..." if self.place is Place.REST else self.metavar
        if self.place in (Place.OPTION, Place.FLAG):
            shown = self.names[0] if self.place is Place.FLAG else f"{self.names[0]} {self.metavar}"
        return shown if self.required else f"[{shown}]"

    def texts(self, args: Args) -> Iterator[str]:
        """What is written for this field; nothing if it has its default and may be left out."""
        value = getattr(args, self.field)
        if self.many:
            yield from map(self.form.text, value)
        elif self.required or value != self.default or self.place is Place.ARGUMENT:
            text = self.form.write(args, self.field)
            if text is not None and (text or self.required or self.default or self.place is not Place.ARGUMENT):
                yield text


@dataclass(frozen=True, slots=True)
class Syntax:
    """How one command is written."""

    command: str
    args: type[Args]
    mutates: bool
    verb: tuple[str, ...]
    marks: tuple[str, ...]
    """Flags that belong to the name of the command: `--force` of `stop --force`."""
    slots: tuple[Slot, ...]

    @property
    def usage(self) -> str:
        return " ".join((*self.verb, *(slot.usage for slot in (*self.arguments, *self.options)), *self.marks))

    @property
    def name(self) -> str:
        return " ".join((*self.verb, *self.marks))

    @property
    def arguments(self) -> tuple[Slot, ...]:
        """The arguments by their places; the one for the rest is the last."""
        placed = [slot for slot in self.slots if slot.place is Place.ARGUMENT]
        return (*placed, *(slot for slot in self.slots if slot.place is Place.REST))

    @property
    def options(self) -> tuple[Slot, ...]:
        return tuple(slot for slot in self.slots if slot.place in (Place.OPTION, Place.FLAG))

    def write(self, args: Args) -> tuple[str, ...]:
        for slot in self.slots:
            if slot.place is Place.PROGRAM and getattr(args, slot.field) != slot.default:
                raise UsageError(f"No line of `{self.name}` can give {slot.field}; only a program can.")
        placed = [text for slot in self.slots if slot.place is Place.ARGUMENT for text in slot.texts(args)]
        rest = [text for slot in self.slots if slot.place is Place.REST for text in slot.texts(args)]
        options = [*self.marks, *self._option_words(args)]
        if any(map(_like_an_option, placed)):
            return (*self.verb, *options, "--", *placed, *rest)
        if any(map(_like_an_option, rest)):
            return (*self.verb, *placed, *options, "--", *rest)
        return (*self.verb, *placed, *rest, *options)

    def _option_words(self, args: Args) -> Iterator[str]:
        for slot in self.options:
            if slot.place is Place.FLAG:
                if getattr(args, slot.field):
                    yield slot.names[0]
                continue
            for text in slot.texts(args):
                yield from (slot.names[0], text)

    # ---- reading ----

    def read(self, rest: Sequence[str]) -> tuple[Args, dict[str, str]]:
        """The arguments and the shared options in the words behind the verb."""
        placed, given, shared = self._sorted(rest)
        values: Values = {}
        for slot, texts in (*self._in_places(placed), *((slot, given.get(slot.field, [])) for slot in self.options)):
            self._take(slot, texts, values)
        args = self.args(**values)
        if problem := args.problem():
            raise UsageError(problem, hint=self._hint)
        return args, shared

    @property
    def _hint(self) -> str:
        return f"Write `{self.usage}`."

    def _sorted(self, rest: Sequence[str]) -> tuple[list[str], dict[str, list[str]], dict[str, str]]:
        """The words of arguments, the texts of options by field, and the shared options. A flag has an empty text."""
        by_name = {name: slot for slot in self.options for name in slot.names}
        metavars = {**(SHARED | ACTING if self.mutates else SHARED), **dict.fromkeys(self.marks, "")}
        metavars |= {name: "" if slot.place is Place.FLAG else slot.metavar for name, slot in by_name.items()}
        placed, given, shared = list[str](), dict[str, list[str]](), dict[str, str]()
        left = list(rest)
        while left:
            word = left.pop(0)
            if word == "--":
                placed += left
                break
            if not _like_an_option(word):
                placed.append(word)
                continue
            name, equals, value = word.partition("=")
            if name not in metavars:
                raise self._unknown_option(name, [*by_name, *self.marks])
            if not metavars[name] and equals:
                raise UsageError(f"{name} takes no value.", hint=self._hint)
            if metavars[name] and not equals:
                if not left:
                    raise UsageError(f"{name} needs a value: {name} {metavars[name]}.", hint=self._hint)
                value = left.pop(0)
            slot = by_name.get(name)
            if slot is None:
                shared |= {name: value} if name not in self.marks else {}
                continue
            if slot.field in given and not slot.many:
                raise UsageError(f"{name} is given twice.", hint="Give it once.")
            given.setdefault(slot.field, []).append(value)
        return placed, given, shared

    def _unknown_option(self, name: str, known: Iterable[str]) -> UsageError:
        listed = sorted(known)
        allowed = f"It has {', '.join(listed)}." if listed else "It has none."
        return UsageError(f"`{self.name}` has no option {name}.", hint=f"{_meant(name, listed)}{allowed}")

    def _in_places(self, placed: Sequence[str]) -> Iterator[tuple[Slot, list[str]]]:
        left = list(placed)
        for slot in self.arguments:
            texts = left if slot.place is Place.REST else left[:1]
            left = left[len(texts) :]
            if slot.required and not texts:
                raise UsageError(f"`{self.name}` needs {slot.metavar}.", hint=self._hint)
            yield slot, texts
        if left:
            many = f"{len(left)} arguments too many, the first of them" if len(left) > 1 else "one argument too many:"
            raise UsageError(f"`{self.name}` has {many} {left[0]!r}.", hint=self._hint)

    def _take(self, slot: Slot, texts: Sequence[str], values: Values) -> None:
        if not texts:
            if slot.required and slot.place is Place.OPTION:
                raise UsageError(f"`{self.name}` needs {slot.usage}.", hint=self._hint)
            return
        if slot.place is Place.FLAG:
            values[slot.field] = True
            return
        try:
            if slot.many:
                values[slot.field] = tuple(map(slot.form.value, texts))
            else:
                slot.form.read(texts[0], values, slot.field, self.args)
        except ValueError as broken:
            name = slot.names[0] if slot.place is Place.OPTION else slot.metavar
            raise UsageError(f"{name}: {texts[0]!r} {broken}.", hint=self._hint) from None


def _like_an_option(text: str) -> bool:
    return text == "--" or _OPTION.match(text) is not None


def words(command: str, args: Args) -> tuple[str, ...]:
    """The words behind `agentrl` that give this command. Raises UsageError if a line cannot express it."""
    return _expressible(command).write(args)


def parse(given: Sequence[str]) -> Line:
    """The meaning of the words behind `agentrl`. Raises UsageError with a sentence."""
    candidates = candidates_of(given)
    if not candidates:
        raise _no_command(given)
    refused: UsageError | None = None
    for syntax in candidates:
        try:
            return Line(COMMANDS[syntax.command], *syntax.read(given[len(syntax.verb) :]))
        except UsageError as error:
            refused = refused or error
    assert refused is not None
    raise refused


def candidates_of(given: Sequence[str]) -> list[Syntax]:
    """The commands that these words may be, the most likely first: those with the longest verb and with all its marks.
    A word that looks like a mark may be the value of an option, so a command without the mark is one of them."""
    before_arguments = set(given[: given.index("--")] if "--" in given else given)
    fitting = [
        syntax
        for syntax in syntaxes().values()
        if tuple(given[: len(syntax.verb)]) == syntax.verb and before_arguments.issuperset(syntax.marks)
    ]
    longest = max((len(syntax.verb) for syntax in fitting), default=0)
    return sorted(
        (syntax for syntax in fitting if len(syntax.verb) == longest),
        key=lambda syntax: (-len(syntax.marks), not syntax.mutates),
    )


def _no_command(given: Sequence[str]) -> UsageError:
    first, second = (*given, "", "")[:2]
    below = sorted({syntax.verb[1] for syntax in syntaxes().values() if syntax.verb[0] == first and syntax.verb[1:]})
    if not below:
        return UsageError(f"There is no command {first!r}.", hint=_meant(first, verbs()).strip())
    hint = f"{_meant(second, below)}`{first}` has {', '.join(below)}."
    return UsageError(f"There is no command `{f'{first} {second}'.strip()}`.", hint=hint)


def verbs() -> tuple[str, ...]:
    """The first words of all lines."""
    return tuple(dict.fromkeys(syntax.verb[0] for syntax in syntaxes().values()))


@functools.cache
def syntaxes() -> dict[str, Syntax]:
    """The syntax of each command that a line can express, by its name."""
    return {
        name: syntax_of(name, spec.args, spec.cli, mutates=spec.mutates)
        for name, spec in COMMANDS.items()
        if spec.args.typed
    }


def _expressible(command: str) -> Syntax:
    syntax = syntaxes().get(command)
    if syntax is None:
        raise UsageError(f"No command line expresses {command}; only a program sends it.")
    return syntax


def syntax_of(command: str, args: type[Args], cli: str, *, mutates: bool = False) -> Syntax:
    """How a command is written whose name on a line is `cli`, such as `stop --force`."""
    named = cli.split()
    verb = tuple(word for word in named if not word.startswith("--"))
    marks = tuple(word for word in named if word.startswith("--"))
    slots = tuple(_slot(field, first=number == 0) for number, field in enumerate(msgspec.structs.fields(args)))
    return Syntax(command, args, mutates, verb, marks, slots)


def _slot(field: msgspec.structs.FieldInfo, *, first: bool) -> Slot:
    kind, declared = _declared(field.type)
    plain = _without_none(kind)
    many = typing.get_origin(plain) is tuple
    place = declared.place or _place(plain, first=first, many=many, required=field.required)
    default = field.default if field.default is not msgspec.NODEFAULT else None
    return Slot(
        field=field.name,
        place=place,
        metavar=declared.metavar or field.name.upper().replace("_", "-"),
        names=declared.names or (f"--{field.name.replace('_', '-')}",),
        form=declared.form or _form(typing.get_args(plain)[0] if many else plain),
        required=field.required if declared.required is None else declared.required,
        many=many,
        default=default,
    )


def _declared(kind: Any) -> tuple[Any, Word]:
    if typing.get_origin(kind) is not typing.Annotated:
        return kind, Word()
    inner, *notes = typing.get_args(kind)
    return inner, next((note for note in notes if isinstance(note, Word)), Word())


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(kind) if member is not type(None)]
        return members[0] if len(members) == 1 else kind
    return kind


def _place(kind: Any, *, first: bool, many: bool, required: bool) -> Place:
    if kind is bool:
        return Place.FLAG
    if many:
        return Place.REST if first else Place.OPTION
    return Place.ARGUMENT if required else Place.OPTION


def _form(kind: Any) -> Form:
    if typing.get_origin(kind) is Literal:
        return Choice(typing.get_args(kind))
    if typing.get_origin(kind) is dict:
        return JsonObject()
    return {str: Form, int: Whole, float: Number, bool: Form}[kind]()


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}? " if near else ""
