"""Reads what an agent loop put between the turns of a record: messages that neither the model nor a tool wrote.

Only the tokens of the prompts are stored, so the messages are decoded from them.

Invariants:
- A result of a tool call of the turn before, or a sentence about a malformed call, is not repeated.
- The prompt of the first turn is not read, because it has only the task and the instructions of the environment.
- If a loop rewrites its prompt, everything from the first different token on counts as its message.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from agentrl.chat.template import Template
from agentrl.store import chunks
from agentrl.store.calls import WITH_TOKENS
from agentrl.store.database import Database, Plain
from agentrl.tokens.binary_format import unpack_ids

FIELDS = ["index", "turn", "status", "prompt", "parsed.error", "tool_calls.id", "tool_calls.result"]
"""The fields of a model call that are read."""


async def cut_results(database: Database, cut: Collection[tuple[str, str]]) -> dict[str, str]:
    """The whole results of documents that have only the ends inline, by the ids of the tool calls."""
    return {id: await chunks.whole(database, id, field) or "" for id, field in cut if field == "result"}


def by_turn(template: Template, calls: Sequence[Plain], results: Mapping[str, str]) -> dict[int, list[Plain]]:
    """The messages before each turn, of the turns that have any.

    `calls` are the model calls of one record; `results` has the whole text of each result that is cut in them.
    """
    first: dict[int, Plain] = {}
    known: dict[int, list[str]] = {}
    for call in sorted(calls, key=lambda call: int(call["index"])):
        if call["status"] in WITH_TOKENS:
            first.setdefault(call["turn"], call)
        known.setdefault(call["turn"], []).extend(_texts(call, results))
    found = {
        turn: _messages(template, unpack_ids(call["prompt"]), known.get(turn - 1, ()))
        for turn, call in first.items()
        if turn > 0 and call.get("prompt")
    }
    return {turn: messages for turn, messages in found.items() if messages}


def _texts(call: Plain, results: Mapping[str, str]) -> list[str]:
    """What tools and the parser answered to the model call."""
    answered = [results.get(tool["id"], tool["result"]) for tool in call.get("tool_calls", ())]
    return answered + [parsed["error"] for parsed in call.get("parsed", ()) if parsed["error"]]


def _messages(template: Template, ids: Sequence[int], known: Sequence[str]) -> list[Plain]:
    left = [_without_results(template, role, text, known) for role, text in template.messages(ids)]
    return [{"role": role, "text": text} for role, text in left if text]


def _without_results(template: Template, role: str, text: str, known: Sequence[str]) -> tuple[str, str]:
    before, after = template.writer.tool_wrap
    if not before:
        return role, "" if role in ("", "tool") and _is_result(text, known) else text.strip()
    for result in known:
        text = text.replace(f"{before}{result}{after}", "", 1)
    return role, text.strip()


def _is_result(text: str, known: Sequence[str]) -> bool:
    """Some templates write a result as JSON, or within an object."""
    return text in known or any(json.dumps(result, ensure_ascii=False) in text for result in known)
