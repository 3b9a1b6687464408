"""The text that a model reads, from the result of an MCP server.

Invariants:
- The text is never longer than its limit, and keeps both ends. A mark of an image is kept whole or removed.
- Content that is neither text nor an image becomes a placeholder; an image becomes a mark, if it is not too large.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from types import MappingProxyType

import mcp_types as types

from agentrl.tokens.image_marks import CHARACTER, mark, plain
from agentrl.toolservers.shortening import gap

MOST_IMAGE_BYTES = 8 << 20
"""The most bytes of all images of a result. Further images become a placeholder."""

_GAP = re.compile(re.escape(gap(0)).replace("0", r"(\d+)"))
FAULT_KEY = "agentrl/fault"
"""Key in the metadata of a failed result: whose fault it was, `policy` or `infrastructure`."""


def cut(text: str, most_chars: int) -> tuple[str, int]:
    """The text, without its middle if it is too long, and the number of characters left out."""
    # The transport may already have left out a part.
    gaps = list(_GAP.finditer(text))
    before = sum(int(found[1]) for found in gaps)
    if len(text) <= most_chars:
        return text, before
    whole = len(text) + before - sum(len(found[0]) for found in gaps)
    room = most_chars - len(gap(whole))
    if room < 2:
        return plain(text[:most_chars]), whole - most_chars
    begin, end = text[: (room + 1) // 2], text[len(text) - room // 2 :]
    if begin.count(CHARACTER) % 2:
        begin = begin[: begin.rindex(CHARACTER)]
    if end.count(CHARACTER) % 2:
        end = end[end.index(CHARACTER) + 1 :]
    left_out = whole - len(begin) - len(end)
    return begin + gap(left_out) + end, left_out


def text_of(result: types.CallToolResult, images: Mapping[str, bytes] = MappingProxyType({})) -> str:
    """The text of all content blocks in order, or of the structured content if there are no blocks. Marks name `images`
    at their places."""
    if not result.content and result.structured_content is not None:
        return plain(json.dumps(result.structured_content, ensure_ascii=False))
    names = {data: name for name, data in images.items()}
    return "\n".join(_text_of_block(block, names) for block in result.content)


def images_of(result: types.CallToolResult) -> dict[str, bytes]:
    """The images of a result by the hash of their bytes, up to the limit on their total size."""
    found: dict[str, bytes] = {}
    for block in result.content:
        data = _data_of(block)
        if data and sum(map(len, found.values())) + len(data) <= MOST_IMAGE_BYTES:
            found[hashlib.sha256(data).hexdigest()] = data
    return found


def _data_of(block: types.ContentBlock) -> bytes:
    if not isinstance(block, types.ImageContent) or len(block.data) > 2 * MOST_IMAGE_BYTES:
        return b""
    try:
        return base64.b64decode(block.data, validate=True)
    except binascii.Error:
        return b""


def declared_fault(result: types.CallToolResult) -> str:
    return str((result.meta or {}).get(FAULT_KEY, ""))


def _text_of_block(block: types.ContentBlock, names: Mapping[bytes, str]) -> str:
    match block:
        case types.TextContent():
            return plain(block.text)
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return plain(resource.text)
        case types.EmbeddedResource(resource=resource):
            return f"[resource {resource.uri}, not text]"
        case types.ResourceLink():
            return f"[resource {block.uri}]"
        case types.ImageContent() if name := names.get(_data_of(block)):
            return mark(name)
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type}, {block.mime_type}]"
