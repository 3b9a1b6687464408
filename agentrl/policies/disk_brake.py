"""When the disk is too full to continue sampling.

Invariants: sampling resumes only when there is more free space than where it stopped, so it does not stop and start in
quick succession; the reason names the disk.
"""

from __future__ import annotations

from collections.abc import Mapping

RESUMES_AT = 1.25
"""Sampling resumes when the free bytes are this many times the reserve."""


def reason(free_bytes: Mapping[str, int], reserve_bytes: int, *, braked: bool) -> str:
    """Why nothing may be admitted; empty if there is room. The keys of `free_bytes` are the names of the disks."""
    wanted = reserve_bytes * (RESUMES_AT if braked else 1)
    short = [(free, name) for name, free in free_bytes.items() if free < wanted]
    if not short:
        return ""
    free, name = min(short)
    again = round(reserve_bytes * RESUMES_AT)
    return f"the disk of {name} is nearly full: {free >> 20} MiB are free, admission resumes at {again >> 20} MiB"
