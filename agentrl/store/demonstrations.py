"""Demonstrations: conversations to learn from, in the files that hold tasks as well.

Invariants:
- messages of the assistant train unless they have `train: false` or `weight: 0`; all others are context;
- tool calls in the form of chat APIs (`tool_calls`) become the text that the run's parser reads back as the same calls;
- a message with content that would be lost is refused with its file and number.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from agentrl.chat import tool_call_parsers
from agentrl.chat.tool_specs import ToolSpec
from agentrl.config.run import RunConfig
from agentrl.store import datasets

Role = Literal["system", "user", "assistant", "tool"]
DEFAULT_PARSER = "qwen"


class Message(msgspec.Struct, frozen=True):
    role: Role
    content: str
    train: bool = True
    """For a message of the assistant: whether its tokens train."""


class Function(msgspec.Struct, frozen=True):
    """A tool in the form of chat data sets (with or without `{"type": "function", "function": {...}}`) or of MCP."""

    name: str = ""
    description: str = ""
    parameters: dict[str, Any] = {}
    schema: dict[str, Any] = {}
    inputSchema: dict[str, Any] = {}
    function: Function | None = None

    @property
    def spec(self) -> ToolSpec:
        inner = self.function or self
        schema = inner.parameters or inner.schema or inner.inputSchema
        return ToolSpec(name=inner.name, description=inner.description, schema=schema)


class Demonstration(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the file."""

    messages: list[Message]
    """Instructions (at most once, first), the query, then turns of the assistant and their results."""
    system: str = ""
    tools: list[Function] = []

    def problem(self) -> str:
        """Empty, or why it is invalid."""
        roles = [message.role for message in self.conversation]
        if roles[:1] != ["user"]:
            return "it does not begin with a message of the user"
        if "system" in roles:
            return "instructions are in the middle of it"
        for before, role in itertools.pairwise(roles):
            if role == "assistant" and before == "assistant":
                return "the assistant has two messages in a row"
            if role != "assistant" and before not in ("assistant", role):
                return f"a message of the {role} follows one of the {before}"
        if any(not tool.spec.name for tool in self.tools):
            return "a tool has no name"
        if roles[-1] != "assistant":
            return "it does not end with the assistant"
        spoken = [message for message in self.conversation if message.role == "assistant"]
        if any(not message.content.strip() for message in spoken):
            return "a message of the assistant is empty"
        if not any(message.train for message in spoken):
            return "no message of the assistant trains; remove the row"
        return ""

    @property
    def instructions(self) -> str:
        return self.messages[0].content if self.messages and self.messages[0].role == "system" else self.system

    @property
    def conversation(self) -> list[Message]:
        """The messages without the instructions."""
        return self.messages[1:] if self.messages and self.messages[0].role == "system" else self.messages

    @property
    def texts(self) -> list[str]:
        return [
            self.instructions,
            *(tool.spec.signature for tool in self.tools),
            *(one.content for one in self.conversation),
        ]


class _GivenCall(msgspec.Struct, frozen=True):
    """An entry of `tool_calls`."""

    id: str = ""
    function: dict[str, Any] = {}


class _GivenMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message as data sets and chat APIs write it."""

    role: Role
    content: str | list[dict[str, Any]] = ""
    tool_calls: list[_GivenCall] = []
    tool_call_id: str = ""
    name: str = ""
    train: bool = True
    weight: float = 1.0


class _GivenRow(msgspec.Struct, frozen=True):
    messages: list[dict[str, Any]] = []
    system: str = ""
    tools: list[Function] = []
    train: bool = True
    functions: list[Any] = []


class _InvalidError(Exception):
    """The row is not a valid demonstration; the message says why."""


def read_demonstrations(
    path: str | Path, *, parser: str = DEFAULT_PARSER, most: int | None = None
) -> list[Demonstration]:
    """Raises ConfigError with file and number. `parser` is the format of tool calls; `most` limits the rows."""
    demonstrations: list[Demonstration] = []
    with datasets.numbered_rows(path) as rows:
        for where, _, plain in itertools.islice(rows, most):
            try:
                demonstrations.append(_demonstration(plain, parser))
            except (msgspec.ValidationError, _InvalidError) as wrong:
                raise datasets.DatasetError(f"{where} is not a demonstration: {wrong}.") from None
    if not demonstrations:
        raise datasets.DatasetError(f"{path} has no demonstrations.")
    return demonstrations


def parser_of(config: RunConfig) -> str:
    """The format in which demonstrations of this run show tool calls; empty if its environments differ."""
    kinds = {environment.parser for environment in config.environments.values()}
    return "" if len(kinds) > 1 else next(iter(kinds), DEFAULT_PARSER)


def _demonstration(plain: Any, parser: str) -> Demonstration:
    given = msgspec.convert(_without_empty(plain), _GivenRow)
    if not given.train:
        raise _InvalidError("`train` is false, so nothing of it would train; remove the row")
    if given.functions:
        raise _InvalidError("`functions` is not read; name the tools in `tools`")
    if not given.messages:
        raise _InvalidError("it has no `messages`")
    messages = [_given_message(number, message) for number, message in enumerate(given.messages, start=1)]
    _refuse_other_order(messages)
    specs = [tool.spec for tool in given.tools]
    one = Demonstration(
        messages=[_message(message, parser, specs) for message in messages], system=given.system, tools=given.tools
    )
    if problem := one.problem():
        raise _InvalidError(problem)
    return one


def _given_message(number: int, plain: Mapping[str, Any]) -> _GivenMessage:
    try:
        return msgspec.convert(_without_empty(plain), _GivenMessage)
    except msgspec.ValidationError as wrong:
        raise _InvalidError(f"message {number}: {wrong}") from None


def _without_empty(plain: Any) -> Any:
    """A message without its empty keys, which exports of chat APIs have in large numbers."""
    if not isinstance(plain, Mapping):
        return plain
    return {key: value for key, value in plain.items() if value is not None and value != [] and value != {}}


def _message(given: _GivenMessage, parser: str, tools: list[ToolSpec]) -> Message:
    text = given.content if isinstance(given.content, str) else "".join(map(_text_of_part, given.content))
    if given.tool_calls:
        if given.role != "assistant":
            raise _InvalidError(f"a message of the {given.role} has `tool_calls`")
        text = "\n".join(part for part in (text, _calls_as_text(given.tool_calls, parser, tools)) if part)
    if given.weight not in (0, 1):
        raise _InvalidError(f"the weight of a message is {given.weight:g}; known are 0 and 1")
    return Message(given.role, text, given.train and given.weight == 1)


def _text_of_part(part: Mapping[str, Any]) -> str:
    if part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise _InvalidError(f"content of the type {part.get('type')!r} is not read, only text")
    return str(part["text"])


def _calls_as_text(given: list[_GivenCall], parser: str, tools: list[ToolSpec]) -> str:
    """The calls as the model should write them. They are parsed once, because the parser decides what they mean."""
    if not parser:
        raise _InvalidError(
            "it has `tool_calls`, and the environments of the run have different parsers; write the calls as text"
        )
    try:
        calls = [tool_call_parsers.call_of(call.function) for call in given]
        text = tool_call_parsers.written(parser, calls)
    except tool_call_parsers.Malformed as wrong:
        raise _InvalidError(f"a tool call cannot be read: {wrong}") from None
    parsed = tool_call_parsers.parse(parser, text, tools)
    if parsed.errors or parsed.calls != calls:
        raise _InvalidError(f"the parser {parser} cannot express its tool calls; write them as text")
    return text


def _refuse_other_order(messages: list[_GivenMessage]) -> None:
    """Refuses results that are not in the order of their calls, the order that episodes use."""
    due: list[str] = []
    for message in messages:
        if message.tool_calls:
            due = [call.id for call in message.tool_calls]
        elif message.role == "tool" and message.tool_call_id and any(due) and due.pop(0) != message.tool_call_id:
            raise _InvalidError(f"the result {message.tool_call_id} is not in the order of the tool calls")
