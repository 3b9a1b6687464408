"""Writes conversations for models without a template of their own: ChatML, or a compact form for small models."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.chat.jinja_rendering import Message, Part
from agentrl.chat.tokenizer import Tokenizer
from agentrl.chat.tool_call_parsers import Call
from agentrl.chat.tool_specs import ToolSpec
from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Markup:
    """How one family of models writes a conversation. It is a `template.Writer`."""

    name: str
    end: str
    roles: dict[str, tuple[str, str]]
    """Role -> control token, and the text that follows it."""
    after_end: str = ""
    """Text between the end of one message and the beginning of the next."""
    tool_wrap: tuple[str, str] = ("", "")
    json_tools: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.end,)

    @property
    def openings(self) -> list[tuple[str, list[Part]]]:
        return [(role, self._opening(role)) for role in self.roles]

    def first(
        self, system: str, tools: Sequence[ToolSpec], query: str, earlier: Sequence[tuple[str, str]]
    ) -> list[Part]:
        messages = [{"role": role, "content": text} for role, text in (*earlier, ("user", query))]
        return self.whole(system, tools, messages)

    def whole(self, system: str, tools: Sequence[ToolSpec], messages: Sequence[Message]) -> list[Part]:
        """The prompt of a conversation."""
        instructions = "\n".join(part for part in (system, self._render_tools(tools)) if part)
        parts = self._message("system", instructions) if instructions else []
        for role, ones in itertools.groupby(messages, lambda one: str(one["role"])):
            texts = [str(one["content"]) for one in ones]
            parts += (
                self._results(texts) if role == "tool" else [p for text in texts for p in self._message(role, text)]
            )
        return [*parts, *self._opening("assistant")]

    def tool_results(self, results: Sequence[str], calls: Sequence[Call], ended: bool) -> list[Part]:
        return [*self._closing(ended), *self._results(results), *self._opening("assistant")]

    def user(self, text: str, ended: bool) -> list[Part]:
        return [*self._closing(ended), *self._message("user", text), *self._opening("assistant")]

    def assistant(self, text: str) -> list[Part]:
        return [("text", text), ("control", self.end)]

    def _results(self, results: Sequence[str]) -> list[Part]:
        before, after = self.tool_wrap
        if before:
            return self._message("tool", "\n".join(f"{before}{result}{after}" for result in results))
        return [part for result in results for part in self._message("tool", result)]

    def _closing(self, ended: bool) -> list[Part]:
        closing: list[Part] = [] if ended else [("control", self.end)]
        return [*closing, ("text", self.after_end)]

    def _opening(self, role: str) -> list[Part]:
        token, text = self.roles[role]
        return [("control", token), ("text", text)]

    def _message(self, role: str, text: str) -> list[Part]:
        return [*self._opening(role), ("text", text), ("control", self.end), ("text", self.after_end)]

    def _render_tools(self, tools: Sequence[ToolSpec]) -> str:
        if not tools:
            return ""
        return "\n" + hermes_tools(tools) if self.json_tools else "\n".join(tool.signature for tool in tools)


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


def hermes_tools(tools: Sequence[ToolSpec]) -> str:
    """Tools for a system message, for models whose template has no place for them."""
    lines = "\n".join(json.dumps(tool.function, ensure_ascii=False) for tool in tools)
    return _HERMES.format(tools=lines)


def markup_of(tokenizer: Tokenizer) -> Markup:
    """The markup whose control tokens this tokenizer has. Raises ConfigError if there is none."""
    for markup in MARKUPS:
        if all(tokenizer.find(token) is not None for token in _control_tokens(markup)):
            return markup
    known = "; ".join(f"{markup.name}: {', '.join(_control_tokens(markup))}" for markup in MARKUPS)
    raise ConfigError(
        "The model has no chat template, and the tokenizer lacks the control tokens of every known one.",
        hint=f"Known are {known}. Take a chat model: it has chat_template.jinja, or one in tokenizer_config.json.",
    )


def _control_tokens(markup: Markup) -> list[str]:
    return sorted({markup.end, *(token for token, _ in markup.roles.values())})
