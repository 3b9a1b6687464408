"""What a model says in the episodes of the contract kit. Pure.

Invariants:
- The same tools and the same task give the same script.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.chat import tool_call_parsers
from agentrl.chat.tool_call_parsers import Call
from agentrl.chat.tool_specs import ToolSpec
from agentrl.policies.example_arguments import arguments_for
from agentrl.rollout.answer_extraction import BOXED

_HUGE = 20_000
_CONTROL = "\x1b[2J\x07\x00 right \u202e wrong \u2028 next"


def answered(schema: str, answer: str) -> str:
    """A text that has the answer at the place where the environment looks for it."""
    if not schema:
        return answer or "nothing"
    return f"\\boxed{{{answer}}}" if schema == BOXED else f"<{schema}>{answer}</{schema}>"


def usual(parser: str, tools: Sequence[ToolSpec], answer: str) -> list[str]:
    """Each tool is called once, and then the answer is right."""
    calls = [Call(tool.name, arguments_for(tool.schema)) for tool in tools]
    return [*(tool_call_parsers.written(parser, [call]) for call in calls), answer]


def hostile(parser: str, tools: Sequence[ToolSpec], schema: str) -> dict[str, list[str]]:
    """Difficult outputs of models, by their kind. If the episode goes on after one, a short answer follows."""
    name = tools[0].name if tools else "search"
    whole = tool_call_parsers.written(parser, [Call(name, {"text": "a"})])
    last = answered(schema, "nothing")
    return {
        "an empty turn": ["", last],
        "a turn without an answer": ["I do not know."],
        "a call that breaks off": [whole[: len(whole) * 2 // 3], last],
        "a tool that does not exist": [tool_call_parsers.written(parser, [Call("no_such_tool", {})]), last],
        "arguments that do not fit": [tool_call_parsers.written(parser, [Call(name, {"no such": [None, {}]})]), last],
        "an empty answer": [answered(schema, "")],
        "control characters": [answered(schema, _CONTROL)],
        "a huge answer": [answered(schema, "9" * _HUGE)],
    }
