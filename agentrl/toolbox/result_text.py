"""The text that a model reads, from the result of an MCP server.

Invariants:
- The text is never longer than its limit, and keeps both ends.
- Content that is not text becomes a placeholder.
"""

from __future__ import annotations

import json
import re

import mcp_types as types

from agentrl.toolservers.shortening import gap

_GAP = re.compile(re.escape(gap(0)).replace("0", r"(\d+)"))
FAULT_KEY = "agentrl/fault"
"""Key in the metadata of a failed result: whose fault it was, `policy` or `infrastructure`."""


def cut(text: str, most_chars: int) -> tuple[str, int]:
    """The text, without its middle if it is too long, and the number of characters left out."""
    # The transport may have left out a part already.
    gaps = list(_GAP.finditer(text))
    before = sum(int(found[1]) for found in gaps)
    if len(text) <= most_chars:
        return text, before
    whole = len(text) + before - sum(len(found[0]) for found in gaps)
    room = most_chars - len(gap(whole))
    if room < 2:
        return text[:most_chars], whole - most_chars
    head = (room + 1) // 2
    tail = room - head
    left_out = whole - head - tail
    return text[:head] + gap(left_out) + text[len(text) - tail :], left_out


def text_of(result: types.CallToolResult) -> str:
    """All content blocks, one after another; the structured content if there are no blocks."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(_text_of_block(block) for block in result.content)


def declared_fault(result: types.CallToolResult) -> str:
    return str((result.meta or {}).get(FAULT_KEY, ""))


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
