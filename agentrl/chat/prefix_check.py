"""Compares the tokens that an episode adds turn by turn with a model's own template over whole conversations.

Invariants:
- Canonical conversations only: the check needs no data and runs whenever a model is read.
- A difference is no error, because an episode trains on its sampled tokens. It shows what the template would write
  instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentrl.chat import own_template
from agentrl.chat.jinja_rendering import Message, RefusedError, merged
from agentrl.chat.own_template import OwnTemplate
from agentrl.chat.tool_call_parsers import Call
from agentrl.chat.tool_specs import ToolSpec

_AROUND = 24
"""Characters shown before and after the first difference."""
_TOOL = ToolSpec(
    name="add",
    description="Adds.",
    schema={"type": "object", "properties": {"a": {"type": "number"}}, "required": ["a"]},
)
_CALL = Call("add", {"a": 1})
_THOUGHT = "<think>\nHm.\n</think>\n\n"


class Rewrite(NamedTuple):
    """A place where a template writes earlier turns differently than they were sampled."""

    when: str
    sampled: str
    written: str


def sentence(rewrites: Sequence[Rewrite]) -> str:
    """The rewrites as a sentence for people; empty if there are none."""
    if not rewrites:
        return ""
    first, *others = rewrites
    also = f" Also {'; '.join(other.when for other in others)}." if others else ""
    return (
        f"The model's chat template rewrites earlier turns {first.when}: it writes {first.written!r} where the episode "
        f"has {first.sampled!r}.{also} `history` of an environment says which the model gets."
    )


class _Case(NamedTuple):
    when: str
    turns: Sequence[tuple[str, str]]
    """Role and text after the first query. A turn of the role `call` is a tool call, with this text before it."""
    tools: bool = False


_CASES = (
    _Case("when another message of the user follows", [("assistant", "It is two."), ("user", "And 2 + 2?")]),
    _Case("when tools answer", [("call", ""), ("tool", "3"), ("call", ""), ("tool", "4")], tools=True),
    _Case(
        "when a message of the user follows a tool",
        [("call", ""), ("tool", "3"), ("assistant", "It is."), ("user", "So?")],
    ),
    _Case(
        "with thoughts when another message of the user follows", [("assistant", _THOUGHT + "Two."), ("user", "So?")]
    ),
    _Case("with thoughts when tools answer", [("call", _THOUGHT), ("tool", "3")], tools=True),
)


def rewrites(template: OwnTemplate) -> list[Rewrite]:
    """The canonical conversations that the template writes differently as a whole than turn by turn."""
    found = []
    for case in _CASES:
        if case.tools and not template.has_results:
            continue
        try:
            if (rewrite := _compared(template, case)) is not None:
                found.append(rewrite)
        except RefusedError:
            # If the template refuses the whole conversation, there is nothing to compare.
            continue
    return found


def _compared(template: OwnTemplate, case: _Case) -> Rewrite | None:
    tools = [_TOOL] if case.tools else []
    messages: list[Message] = [{"role": "user", "content": "What is 1 + 1?"}]
    parts = template.first("Be brief.", tools, "What is 1 + 1?", ())
    for role, text in case.turns:
        match role:
            case "assistant" | "call":
                calls = [_CALL] if role == "call" else []
                messages.append(own_template.said(text, calls))
                parts = merged([*parts, *template.sampled(text, calls)])
            case "tool":
                messages.append(own_template.answered(text, _CALL))
                parts = merged([*parts, *template.tool_results([text], [_CALL], True)])
            case _:
                messages.append({"role": "user", "content": text})
                parts = merged([*parts, *template.user(text, True)])
    whole = merged(template.whole("Be brief.", tools, messages))
    if whole == parts:
        return None
    ours, theirs = ("".join(text for _, text in one) for one in (parts, whole))
    same = next(
        (at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs))
    )
    place = slice(max(0, same - _AROUND), same + _AROUND)
    return Rewrite(case.when, ours[place], theirs[place])
