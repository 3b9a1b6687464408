"""What `python -m agentrl.placement` reads and prints."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agentrl.placement import HostRequest, Placed, PlacedRun

Act = Literal["ensure", "describe", "release"]


class Request(msgspec.Struct, frozen=True):
    """One call of a backend. Its invitations contain secrets, so it is never passed on a command line."""

    act: Act
    settings: dict[str, Any]
    """`placement` of the run file, as plain data."""
    run: PlacedRun
    wanted: tuple[HostRequest, ...] = ()
    hosts: tuple[str, ...] = ()


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    placed: tuple[Placed, ...] = ()
    error: str = ""
    hint: str = ""
    code: int = 0
