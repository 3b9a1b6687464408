"""Gets one complete record, and writes its page or trace to a file.

Invariants:
- A record with more turns than fit into a message comes in several answers and is complete.
- An existing file is never overwritten, and a failed write leaves nothing behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.client.command_methods import CommandMethods
from agentrl.errors import RefusedError, UnknownNameError, UsageError
from agentrl.protocol.data_commands import RecordStory

ANSWER_S = 60.0
CHARS = 100_000
"""The most characters of each text of a record, unless the caller wants all."""
TURNS_AT_ONCE = 64
MOST_OF_OTHERS = 1000
MOST_IMAGE_BYTES = 32 << 20
"""The most bytes of all images of a page together; further images are named in words."""


async def whole_story(
    client: CommandMethods, record: str, *, chars: int = CHARS, marks: bool = False, deadline_s: float = ANSWER_S
) -> RecordStory:
    """A record with all of its turns. `marks`: texts keep the marks of images."""
    at_once = TURNS_AT_ONCE
    found: RecordStory | None = None
    while found is None or found.more_turns:
        after = found.turns[-1]["index"] if found is not None else -1
        try:
            part = await client.show_record(
                record, after_turn=after, limit=at_once, chars=chars, marks=marks, deadline_s=deadline_s
            )
        except RefusedError:
            if at_once == 1:
                raise
            at_once = max(1, at_once // 4)  # The answer was larger than a message.
            continue
        found = part if found is None else msgspec.structs.replace(part, turns=found.turns + part.turns)
        if part.more_turns and not part.turns:
            raise RefusedError(f"The turns of {record} after {after} cannot be read.")
    return found


async def images(client: CommandMethods, story: RecordStory, *, deadline_s: float = ANSWER_S) -> dict[str, bytes]:
    """The images that a page of this record shows, by name, if they are stored and while there is room."""
    from agentrl.formatting import record_page

    found: dict[str, bytes] = {}
    room = MOST_IMAGE_BYTES
    for name in record_page.image_names(story):
        try:
            data = await _image(client, name, room, deadline_s)
        except UnknownNameError:
            continue
        if data is not None:
            found[name] = data
            room -= len(data)
    return found


async def _image(client: CommandMethods, name: str, room: int, deadline_s: float) -> bytes | None:
    data, length = b"", 1
    while len(data) < length:
        part = await client.read_image(name, offset=len(data), deadline_s=deadline_s)
        length = part.length
        if length > room or not part.data:
            return None
        data += part.data
    return data


async def of_other_models(
    client: CommandMethods, record: str, *, deadline_s: float = ANSWER_S
) -> tuple[Mapping[str, Any], ...]:
    """Calls of judges and other models that the record caused, the oldest first."""
    found = await client.other_models(record=record, limit=MOST_OF_OTHERS, deadline_s=deadline_s)
    return found.calls[::-1]


async def html_page(client: CommandMethods, record: str, *, run: str = "", chars: int = CHARS) -> str:
    from agentrl.formatting import record_page

    story = await whole_story(client, record, chars=chars, marks=True)
    return record_page.page(story, await images(client, story), await of_other_models(client, record), run=run)


async def timeline(client: CommandMethods, record: str, *, chars: int = 2000) -> bytes:
    from agentrl.formatting import record_timeline

    story = await whole_story(client, record, chars=chars)
    return record_timeline.trace(story, await of_other_models(client, record))


def name_for(record: str, suffix: str) -> Path:
    """A file name without characters that a shell or a file system minds."""
    return Path(re.sub(r"[^A-Za-z0-9._-]+", "-", record).strip("-.") + suffix)


def write_new(path: Path, data: bytes) -> None:
    """Writes a new file. Raises UsageError if the file exists or cannot be written."""
    try:
        file = path.open("xb")
    except FileExistsError:
        raise UsageError(f"{path} exists already.", hint="Name another file with --output, or remove it.") from None
    except OSError as broken:
        raise UsageError(f"{path} cannot be written: {broken.strerror}.") from broken
    try:
        with file:
            file.write(data)
    except OSError as broken:
        path.unlink(missing_ok=True)
        raise UsageError(f"{path} cannot be written: {broken.strerror}.") from broken
