"""Formats durations, times, counts and bytes."""

from __future__ import annotations

import re
import time


def age(seconds: float) -> str:
    """A duration: `3 s`, `4 min`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 120:
        return f"{minutes} min"
    if hours < 48:
        return f"{hours} h {minutes % 60} min" if minutes % 60 else f"{hours} h"
    return f"{days} d {hours % 24} h" if hours % 24 else f"{days} d"


def duration(seconds: float) -> str:
    """A duration that may be short: `12 ms`, `3.4 s`, `4 min`."""
    if 0 < seconds < 0.1:
        return f"{max(1, round(seconds * 1000))} ms"
    return f"{max(0.0, seconds):.1f} s" if seconds < 10 else age(seconds)


def counted(number: int, plural: str) -> str:
    """`2 records`, `1 record`, `1 kind of tool errors`."""
    return f"{number} {_PLURAL.sub(_single, plural, count=1) if number == 1 else plural}"


_PLURAL = re.compile(r"(?<=[a-z])(ies|(?<=ss|sh|ch)es|xes|s)\b")
"""The ending of the first word that is a plural."""
_SINGLE = {"ies": "y", "es": "", "xes": "x", "s": ""}


def _single(end: re.Match[str]) -> str:
    return _SINGLE[end[1]]


def since(at: float, now: float | None = None) -> str:
    """The age of a wall-clock time; empty for 0."""
    return age((time.time() if now is None else now) - at) if at else ""


def moment(at: float) -> str:
    """A local time, with its date if it is not today."""
    if not at:
        return ""
    then = time.localtime(at)
    today = time.localtime()[:3] == then[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", then)


def utc(at: float) -> str:
    """A time in UTC."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def size(count: float) -> str:
    """Bytes: `0`, `712 KiB`, `1.4 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}" if count else "0"
        count /= 1024
    return f"{count:.3g} TiB"
