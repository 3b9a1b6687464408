"""Renders the chat template that comes with a model, as transformers does, and splits the text into control tokens and
plain text.

Invariants:
- The template runs in a sandbox of jinja2 and cannot change anything.
- Only a control token that the template itself writes counts as one: its name in a message, a tool or a result stays
  text.
- The same messages always give the same text: `strftime_now` returns a fixed date.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from agentrl.chat.tokenizer import Tokenizer
from agentrl.errors import ConfigError

Part = tuple[Literal["control", "text", "image"], str]
"""Text, a control token by its name, or an image by its name."""
Message = Mapping[str, Any]
ANY = "\0"
"""A wildcard in the opening of a message: it matches any text."""
DATE = "2025-01-01"
"""The date of today for templates, unless the variable `date` sets another. It is fixed because an episode may continue
on another day."""
_FIRST_STAND_IN = 0xF0000
"""The first character of a private-use plane of Unicode. One such character replaces each control token in foreign
text."""


class RefusedError(ConfigError):
    """The template cannot be rendered with these messages, or rejects them."""


class Rendering:
    """One template with its variables."""

    def __init__(
        self, source: str, names: Mapping[str, str], tokenizer: Tokenizer, variables: Mapping[str, Any]
    ) -> None:
        """`names` maps special tokens of the template, such as `bos_token`, to their text."""
        self._names = names
        self._variables = {name: value for name, value in variables.items() if name != "date"}
        self._today = datetime.fromisoformat(str(variables.get("date", DATE)))
        self.control = sorted(tokenizer.control_tokens(), key=len, reverse=True)
        try:
            self._template = _environment(self._today).from_string(source)
        except Exception as broken:
            raise _refused("read", broken) from broken

    def parts(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = (), *, opening: bool = False
    ) -> list[Part]:
        """The rendered conversation. `opening`: end it with the beginning of the assistant's turn."""
        guard = _Guard(self.control, [messages, tools])
        try:
            text = self._template.render(
                messages=guard.hidden(list(messages)),
                tools=guard.hidden(list(tools)) or None,
                documents=None,
                add_generation_prompt=opening,
                **self._names,
                **self._variables,
            )
        except Exception as broken:  # noqa: BLE001 - a template is foreign code
            raise _refused("rendered", broken) from None
        return [(kind, part if kind == "control" else guard.shown(part)) for kind, part in self.split(text)]

    def split(self, text: str) -> Iterator[Part]:
        """Every control token in a text becomes a part of its own."""
        at = 0
        for found in self._pattern.finditer(text):
            if found.start() > at:
                yield "text", text[at : found.start()]
            yield "control", found[0]
            at = found.end()
        if at < len(text):
            yield "text", text[at:]

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.control)) or r"(?!)")


def after(parts: Sequence[Part], before: Sequence[Part]) -> list[Part] | None:
    """The parts that follow `before`; None if the parts do not begin with it."""
    if not before:
        return list(parts)
    *whole, last = before
    rest = list(parts[len(whole) :])
    if list(parts[: len(whole)]) != whole or not rest or rest[0][0] != last[0]:
        return None
    if rest[0] == last:
        return rest[1:]
    if last[0] == "control" or not rest[0][1].startswith(last[1]):
        return None
    return [("text", rest[0][1].removeprefix(last[1])), *rest[1:]]


def merged(parts: Iterable[Part]) -> list[Part]:
    """The parts, with neighboring texts joined."""
    made: list[Part] = []
    for kind, text in parts:
        if kind == "text" and made and made[-1][0] == "text":
            made[-1] = ("text", made[-1][1] + text)
        else:
            made.append((kind, text))
    return made


class _Guard:
    """Hides the names of control tokens in foreign text from the template and from `split`."""

    def __init__(self, control: Sequence[str], values: Any) -> None:
        texts = "\0".join(_texts(values))
        present = [token for token in control if token in texts]
        used = set(texts) if present else set()
        free = (chr(code) for code in range(_FIRST_STAND_IN, 0x10FFFE) if chr(code) not in used)
        self._stand_ins = dict(zip(present, free, strict=False))

    def hidden(self, value: Any) -> Any:
        if not self._stand_ins:
            return value
        match value:
            case str():
                for token, stand_in in self._stand_ins.items():
                    value = value.replace(token, stand_in)
                return value
            case Mapping():
                return {self.hidden(name): self.hidden(item) for name, item in value.items()}
            case list() | tuple():
                return [self.hidden(item) for item in value]
            case _:
                return value

    def shown(self, text: str) -> str:
        for token, stand_in in self._stand_ins.items():
            # The second replacement is for its escape in ASCII-only JSON.
            text = text.replace(stand_in, token).replace(json.dumps(stand_in)[1:-1], token)
        return text


def _texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case Mapping():
            for name, item in value.items():
                yield from (*_texts(name), *_texts(item))
        case list() | tuple():
            for item in value:
                yield from _texts(item)


def source_of(directory: Path) -> tuple[str, dict[str, str]]:
    """The text of a model's template, empty if it has none, and the names of special tokens that it may use."""
    try:
        return _source(directory)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as broken:
        raise ConfigError(f"The chat template in {directory} cannot be read: {broken}.") from broken


def _source(directory: Path) -> tuple[str, dict[str, str]]:
    described = _json(directory / "tokenizer_config.json")
    found = {**_json(directory / "special_tokens_map.json"), **described}
    tokens = {name: found.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    names = {
        name: str(token["content"] if isinstance(token, Mapping) else token) for name, token in tokens.items() if token
    }
    if (file := directory / "chat_template.jinja").is_file():
        return file.read_text(encoding="utf-8"), names
    source = _json(directory / "chat_template.json").get("chat_template") or described.get("chat_template") or ""
    if isinstance(source, list):  # a list has templates by name; a separate one for tools also handles plain chats
        by_name = {one["name"]: one["template"] for one in source}
        source = by_name.get("tool_use") or by_name.get("default") or ""
    return str(source), names


def end_tokens(directory: Path, tokenizer: Tokenizer) -> list[str]:
    """The control tokens at which the model's own configuration stops to generate."""
    found = _json(directory / "generation_config.json").get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    by_id = {tokenizer.control(token): token for token in tokenizer.control_tokens()}
    return [by_id[one] for one in ids if isinstance(one, int) and one in by_id]


def image_token(directory: Path, tokenizer: Tokenizer) -> str:
    """The control token that stands for an image; empty for a model that reads only text."""
    found = _json(directory / "config.json").get("image_token_id")
    by_id = {tokenizer.control(token): token for token in tokenizer.control_tokens()}
    return by_id.get(found, "") if isinstance(found, int) else ""


def _json(file: Path) -> dict[str, Any]:
    found = json.loads(file.read_bytes()) if file.is_file() else {}
    return found if isinstance(found, dict) else {}


def _environment(today: datetime) -> Any:
    sandbox, extensions = importlib.import_module("jinja2.sandbox"), importlib.import_module("jinja2.ext")

    class Generation(extensions.Extension):  # type: ignore[misc, name-defined]
        """The tag `{% generation %}` marks text of the assistant; here it renders as its content."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, extensions.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = today.strftime
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON. Unlike the filter of jinja2 it does not escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refused(what: str, broken: Exception) -> RefusedError:
    return RefusedError(f"The model's chat template cannot be {what}: {type(broken).__name__}: {broken}.")


def _refuse(why: str) -> None:
    raise ValueError(why)
