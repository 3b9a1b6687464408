"""From what an MCP server answers to the text that a model reads.

Invariants: the text is never longer than the limit and keeps both ends; nothing that is not text is put into a prompt,
but a placeholder says that it was there. Works on values only.
"""

from __future__ import annotations

import json

import mcp_types as types

FAULT_KEY = "agentrl/fault"
"""A server may say in the metadata of a failed result whose fault it was: `policy` or `infrastructure`."""


def cut(text: str, most_chars: int) -> tuple[str, int]:
    """The text with its middle left out if it is too long, and how many characters were left out."""
    if len(text) <= most_chars:
        return text, 0
    room = most_chars - len(_gap(len(text)))
    if room < 2:
        return text[:most_chars], len(text) - most_chars
    head = (room + 1) // 2
    tail = room - head
    left_out = len(text) - head - tail
    return text[:head] + _gap(left_out) + text[len(text) - tail :], left_out


def text_of(result: types.CallToolResult) -> str:
    """All content blocks, one after another; the structured content if there are no blocks."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(_text_of_block(block) for block in result.content)


def declared_fault(result: types.CallToolResult) -> str:
    return str((result.meta or {}).get(FAULT_KEY, ""))


def _gap(left_out: int) -> str:
    return f"\n[... {left_out} characters left out ...]\n"


def _text_of_block(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return resource.text
        case types.EmbeddedResource(resource=resource):
            return f"[resource {resource.uri}, not text]"
        case types.ResourceLink():
            return f"[resource {block.uri}]"
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type}, {block.mime_type}]"
