"""Compares a model's own chat template with the one that this run uses.

Invariants:
- The result is only reported, never trained on or sampled from.
- A template that cannot be rendered is a difference and not an error.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.chat.template import Template
from agentrl.chat.tool_specs import ToolSpec

_SYSTEM, _QUERY = "Be brief.", "And 2 + 2?"
_EARLIER = (("user", "What is 1 + 1?"), ("assistant", "2"))
_TOOL = ToolSpec(
    name="add",
    description="Add numbers.",
    schema={"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}},
)
_AROUND = 24
"""Characters shown before and after the first difference."""


def difference(template: Template, directory: Path) -> str:
    """The first difference as a sentence; empty if they agree or if the model has no template."""
    try:
        source, names = _source(directory)
    except (OSError, ValueError) as broken:
        return f"The chat template of {directory} cannot be read: {broken}."
    if not source:
        return ""
    for tools in ((), (_TOOL,)):
        ours = template.tokenizer.decode(template.first(_SYSTEM, tools, _QUERY, earlier=_EARLIER))
        try:
            theirs = _rendered(source, names, tools)
        except Exception as broken:  # noqa: BLE001 - a template is foreign code
            return f"The model's own chat template cannot be rendered: {type(broken).__name__}: {broken}."
        if ours != theirs:
            what = "a conversation with tools" if tools else "a conversation"
            at = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            place = slice(max(0, (min(len(ours), len(theirs)) if at is None else at) - _AROUND), None)
            shown = [text[place][: 2 * _AROUND] for text in (theirs, ours)]
            return (
                f"The model's own chat template writes {what} differently from {template.markup.name}, which is used: "
                f"{shown[0]!r} there, {shown[1]!r} here."
            )
    return ""


def _source(directory: Path) -> tuple[str, Mapping[str, str]]:
    """The text of the template, and the tokens that it may use."""
    described: dict[str, Any] = {}
    if (file := directory / "tokenizer_config.json").is_file():
        described = json.loads(file.read_bytes())
    tokens = {name: described.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    names = {
        name: str(token["content"] if isinstance(token, Mapping) else token) for name, token in tokens.items() if token
    }
    if (file := directory / "chat_template.jinja").is_file():
        return file.read_text(), names
    source = described.get("chat_template") or ""
    if isinstance(source, list):  # a list of named templates
        source = next((one["template"] for one in source if one["name"] == "default"), "")
    return str(source), names


def _rendered(source: str, names: Mapping[str, str], tools: tuple[ToolSpec, ...]) -> str:
    sandbox = importlib.import_module("jinja2.sandbox")
    made = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    made.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    made.globals["raise_exception"] = _refuse
    messages = (("system", _SYSTEM), *_EARLIER, ("user", _QUERY))
    functions = [
        {"type": "function", "function": {"name": one.name, "description": one.description, "parameters": one.schema}}
        for one in tools
    ]
    text = made.from_string(source).render(
        messages=[{"role": role, "content": content} for role, content in messages],
        tools=functions or None,
        add_generation_prompt=True,
        **names,
    )
    return str(text)


def _refuse(why: str) -> None:
    raise ValueError(why)
