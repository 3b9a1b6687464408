"""The result of one check."""

from __future__ import annotations

from typing import Literal

import msgspec

Verdict = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    name: str
    verdict: Verdict
    sentence: str
    hint: str = ""
    """What to do; empty if nothing."""
