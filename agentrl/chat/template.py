"""Converts messages to token ids, one segment at a time.

Invariants:
- A trajectory is a concatenation of segments, and the ids of a segment never depend on its neighbors: sampled ids are
  unchanged, and text of the environment is tokenized separately.
- Data for supervised training comes from the same functions.
- A segment of the environment ends with the opening of the next assistant turn.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.chat.tokenizer import Tokenizer
from agentrl.chat.tool_specs import ToolSpec
from agentrl.errors import ConfigError

Part = tuple[Literal["control", "text"], str]


@dataclass(frozen=True, slots=True)
class Markup:
    """How one family of models writes a conversation."""

    name: str
    end: str
    roles: dict[str, tuple[str, str]]
    """Role -> control token, and the text that follows it."""
    after_end: str = ""
    """Text between the end of one message and the beginning of the next."""
    tool_wrap: tuple[str, str] = ("", "")
    json_tools: bool = False


COMPACT = Markup(
    name="compact",
    end="<|end|>",
    roles={role: (f"<|{role}|>", "") for role in ("system", "user", "assistant", "tool")},
)
CHATML = Markup(
    name="chatml",
    end="<|im_end|>",
    roles={
        "system": ("<|im_start|>", "system\n"),
        "user": ("<|im_start|>", "user\n"),
        "assistant": ("<|im_start|>", "assistant\n"),
        # These models read all tool results of a turn in one message of the user.
        "tool": ("<|im_start|>", "user\n"),
    },
    after_end="\n",
    tool_wrap=("<tool_response>\n", "\n</tool_response>"),
    json_tools=True,
)
MARKUPS = (COMPACT, CHATML)

_HERMES = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class Template:
    """The template of one tokenizer, whose control tokens decide the markup."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.markup = _markup_of(tokenizer)
        self._control = {
            token: tokenizer.control(token)
            for token in (self.markup.end, *(token for token, _ in self.markup.roles.values()))
        }

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end a turn of the assistant."""
        return (self._control[self.markup.end],)

    def first(
        self, system: str, tools: Sequence[ToolSpec], query: str, *, earlier: Sequence[tuple[str, str]] = ()
    ) -> list[int]:
        """The first prompt: instructions, tools, earlier messages, the query, and the opening of the assistant's
        turn."""
        instructions = "\n".join(part for part in (system, self._render_tools(tools)) if part)
        parts = [
            *(self._message("system", instructions) if instructions else ()),
            *(part for role, text in earlier for part in self._message(role, text)),
            *self._message("user", query),
            *self._opening("assistant"),
        ]
        return self._encode(parts)

    def tool_results(self, results: Sequence[str], *, ended: bool = True) -> list[int]:
        """The ids that the environment adds after a turn of the assistant.

        `ended` is False if the model was cut off before its end token; then the segment begins with that token, which
        belongs to the environment.
        """
        parts = self._closing(ended)
        before, after = self.markup.tool_wrap
        if before:
            parts += self._message("tool", "\n".join(f"{before}{result}{after}" for result in results))
        else:
            parts += [part for result in results for part in self._message("tool", result)]
        return self._encode([*parts, *self._opening("assistant")])

    def user(self, text: str, *, ended: bool = True) -> list[int]:
        """A message of the user after a turn of the assistant, such as an error to correct."""
        return self._encode([*self._closing(ended), *self._message("user", text), *self._opening("assistant")])

    def assistant(self, text: str) -> list[int]:
        """The ids that a model would have sampled for `text`, with the end token; for supervised data."""
        return self._encode([("text", text), ("control", self.markup.end)])

    def messages(self, ids: Sequence[int]) -> list[tuple[str, str]]:
        """The role and text of each message in a part of a prompt. Text outside of messages has no role."""
        openings = {self._control[token]: token for token, _ in self.markup.roles.values()}
        parts: list[tuple[str, list[int]]] = [("", [])]
        for token in ids:
            if token == self._control[self.markup.end]:
                parts.append(("", []))
            elif token in openings:
                parts.append((openings[token], []))
            else:
                parts[-1][1].append(token)
        return [self._role_and_text(opening, self.tokenizer.decode(inside)) for opening, inside in parts if inside]

    def _role_and_text(self, opening: str, text: str) -> tuple[str, str]:
        for role, (token, begin) in self.markup.roles.items():
            if token == opening and text.startswith(begin):
                return role, text.removeprefix(begin)
        return "", text

    def _closing(self, ended: bool) -> list[Part]:
        closing: list[Part] = [] if ended else [("control", self.markup.end)]
        return [*closing, ("text", self.markup.after_end)]

    def _opening(self, role: str) -> list[Part]:
        token, text = self.markup.roles[role]
        return [("control", token), ("text", text)]

    def _message(self, role: str, text: str) -> list[Part]:
        return [
            *self._opening(role),
            ("text", text),
            ("control", self.markup.end),
            ("text", self.markup.after_end),
        ]

    def _render_tools(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        if not self.markup.json_tools:
            return "\n".join(tool.signature for tool in tools)
        functions = (
            {"name": tool.name, "description": tool.description, "parameters": tool.schema or {"type": "object"}}
            for tool in tools
        )
        lines = "\n".join(json.dumps({"type": "function", "function": one}, ensure_ascii=False) for one in functions)
        return "\n" + _HERMES.format(tools=lines)

    def _encode(self, parts: Sequence[Part]) -> list[int]:
        """Joins neighboring texts first, because a model's own template tokenizes a message as a whole."""
        ids: list[int] = []
        text = ""
        for kind, value in parts:
            if kind == "text":
                text += value
                continue
            ids += self.tokenizer.encode(text) if text else []
            ids.append(self._control[value])
            text = ""
        return ids + (self.tokenizer.encode(text) if text else [])


def _markup_of(tokenizer: Tokenizer) -> Markup:
    for markup in MARKUPS:
        if all(tokenizer.find(token) is not None for token in _control_tokens(markup)):
            return markup
    known = "; ".join(f"{markup.name}: {', '.join(_control_tokens(markup))}" for markup in MARKUPS)
    raise ConfigError(
        "The tokenizer lacks the control tokens of every known chat template.",
        hint=f"Known are {known}. Take a chat model with one of them, such as Qwen.",
    )


def _control_tokens(markup: Markup) -> list[str]:
    return sorted({markup.end, *(token for token, _ in markup.roles.values())})
