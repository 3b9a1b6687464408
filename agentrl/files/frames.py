"""The messages between file processes, and between a unit and the file process of its host.

A message is its length in four bytes and JSON; the bytes of a piece follow the message that announces them.
"""

from __future__ import annotations

import asyncio

import msgspec

from agentrl.errors import AgentrlError
from agentrl.files.deltas import Delta
from agentrl.files.pieces import Content

MOST_BYTES = 64 << 20
"""This large, because a list may name many thousand files."""


class FilesError(AgentrlError):
    """A file of the run is not available on this host now. It may be later."""


class WrongListError(AgentrlError):
    """The list of pieces is damaged, so no host can be asked for the file."""


# ---- between hosts ----


class AskPieces(msgspec.Struct, frozen=True, tag="what_is_there"):
    """Which pieces of a file does this host have? Answered by PieceList when the revision differs from `known`."""

    path: str
    """The path relative to the run's directory, by which the host that wrote the file finds it."""
    content: Content
    known: int = -1


class PieceList(msgspec.Struct, frozen=True, omit_defaults=True):
    revision: int = 0
    have: str = "0"
    """A bitmap in hexadecimal digits, like the next one."""
    asked: str = "0"
    whole: bool = False
    origin: bool = False
    nothing: bool = False
    """Whether this host neither has the file nor is getting it."""


class SendPiece(msgspec.Struct, frozen=True, tag="send_piece"):
    """Answered by Piece and its bytes."""

    path: str
    content: Content
    number: int


class Piece(msgspec.Struct, frozen=True, omit_defaults=True):
    bytes: int = 0
    problem: str = ""


class ListFiles(msgspec.Struct, frozen=True, tag="list_files"):
    """Which files does a unit of this role need? Answered by Listed."""

    role: str


class Listed(msgspec.Struct, frozen=True, omit_defaults=True):
    config: str = ""
    """The configuration in force, as JSON."""
    files: dict[str, Content] = {}
    """The files by their absolute path on that host."""
    executable: list[str] = []
    problem: str = ""


FromHost = AskPieces | SendPiece | ListFiles


# ---- from a unit ----


class Bring(msgspec.Struct, frozen=True, tag="bring"):
    """Get these files into a directory, given relative to the run's. Answered by Progress, then Done. They stay until
    the connection ends or sends a Keep that does not name the directory."""

    directory: str
    files: dict[str, Content]
    deltas: dict[str, Delta] = {}
    """The deltas of files, for a host that has their bases."""


class Keep(msgspec.Struct, frozen=True, tag="keep"):
    """Of the directories that this connection brought, only these are still needed. It gets no answer."""

    directories: list[str]


class Prepare(msgspec.Struct, frozen=True, tag="prepare"):
    """Get the configuration and the files that units of this role read. Answered by Progress, then Done."""

    role: str


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    done_bytes: int
    all_bytes: int


class Done(msgspec.Struct, frozen=True, tag="done", omit_defaults=True):
    problem: str = ""
    damaged: bool = False
    """Whether the list is damaged, so that asking again will not help."""


FromUnit = Bring | Keep | Prepare


async def read(reader: asyncio.StreamReader) -> bytes:
    """One message. Raises OSError or asyncio.IncompleteReadError if the connection ends."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > MOST_BYTES:
        raise ConnectionError(f"a message of {size} bytes is refused")
    return await reader.readexactly(size)


def write(writer: asyncio.StreamWriter, message: msgspec.Struct) -> None:
    body = msgspec.json.encode(message)
    writer.write(len(body).to_bytes(4, "big"))
    writer.write(body)
