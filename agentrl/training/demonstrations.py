"""Demonstrations: conversations to learn from, read from JSONL and tokenized by the same functions as episodes.

Invariants:
- messages of the assistant train, all others are context;
- an invalid line is reported with its number;
- the ids of a demonstration are those of an episode with the same texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from agentrl.chat.template import Template
from agentrl.chat.tokenizer import Tokenizer
from agentrl.chat.tool_specs import ToolSpec
from agentrl.errors import ConfigError
from agentrl.tokens.spans import ROOT
from agentrl.training.batch import Segment, Trajectory

Role = Literal["system", "user", "assistant", "tool"]


class Message(msgspec.Struct, frozen=True):
    role: Role
    content: str


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
    """One line of the file."""

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
        return ""

    @property
    def instructions(self) -> str:
        return self.messages[0].content if self.messages and self.messages[0].role == "system" else self.system

    @property
    def conversation(self) -> list[Message]:
        """Without the instructions."""
        return self.messages[1:] if self.messages and self.messages[0].role == "system" else self.messages

    @property
    def texts(self) -> list[str]:
        return [
            self.instructions,
            *(tool.spec.signature for tool in self.tools),
            *(one.content for one in self.conversation),
        ]


def read_demonstrations(path: Path) -> list[Demonstration]:
    """Raises ConfigError with the number of the line."""
    found: list[Demonstration] = []
    try:
        lines = path.read_bytes().splitlines()
    except OSError as broken:
        raise ConfigError(f"The demonstrations {path} cannot be read: {broken.strerror}.") from broken
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            one = msgspec.json.decode(line, type=Demonstration)
        except msgspec.MsgspecError as broken:
            raise ConfigError(f"Line {number} of {path} is not a demonstration: {broken}.") from broken
        if problem := one.problem():
            raise ConfigError(f"Line {number} of {path} is not a demonstration: {problem}.")
        found.append(one)
    if not found:
        raise ConfigError(f"{path} has no demonstrations.")
    return found


def trajectory_of(one: Demonstration, template: Template, name: str) -> Trajectory:
    """The tokens of a demonstration, whose likelihood is trained."""
    segments: list[Segment] = []
    for role, texts in _runs(one.conversation):
        if role == "assistant":
            ids = np.array(template.assistant(texts[0]))
            versions = [(0, len(ids))]
            trained = Segment(
                parent=len(segments) - 1, ids=ids, trains=True, log_probs=np.zeros(len(ids)), versions=versions
            )
            segments.append(trained)
        else:
            ids = np.array(_read(role, texts, one, template, not segments))
            segments.append(Segment(parent=len(segments) - 1 if segments else ROOT, ids=ids))
    # Demonstrations begin alike, so they are packed together.
    return Trajectory(record=name, group="demonstrations", segments=segments)


def _read(role: Role, texts: Sequence[str], one: Demonstration, template: Template, first: bool) -> list[int]:
    """The ids that the environment adds, including the opening of the assistant's turn."""
    if first:
        return template.first(one.instructions, [tool.spec for tool in one.tools], "\n".join(texts))
    return template.tool_results(texts) if role == "tool" else template.user("\n".join(texts))


def _runs(messages: Sequence[Message]) -> Iterator[tuple[Role, list[str]]]:
    """Joins consecutive messages of one role, such as several results of one turn."""
    texts: list[str] = []
    for place, message in enumerate(messages):
        texts.append(message.content)
        if place + 1 == len(messages) or messages[place + 1].role != message.role:
            yield message.role, texts
            texts = []


def tokenized(demonstrations: Sequence[Demonstration], model: Path) -> list[Trajectory]:
    """All demonstrations in the tokens of a model."""
    if not demonstrations:
        return []
    template = Template(Tokenizer(model))
    return [trajectory_of(one, template, f"demonstration {number}") for number, one in enumerate(demonstrations)]
