"""Formats values for narrow columns: states with their signs, ages, shares."""

from __future__ import annotations

import re
from collections.abc import Iterable

from agentrl.protocol.rows import COMPLETED, FINISHED, PAUSED, STANDING, AlertRow, GroupRow, Severity
from tui.model.styled_text import Span, Tone, span

_STATES: dict[str, tuple[str, Tone]] = {
    "ready": ("●", Tone.GOOD),
    "running": ("●", Tone.GOOD),
    "up": ("●", Tone.GOOD),
    "succeeded": ("✓", Tone.GOOD),
    COMPLETED: ("✓", Tone.GOOD),
    FINISHED: ("✓", Tone.GOOD),
    PAUSED: ("‖", Tone.WARN),
    STANDING: ("■", Tone.WARN),
    "resolved": ("✓", Tone.DIM),
    "went away": ("·", Tone.DIM),
    "pending": ("○", Tone.BUSY),
    "starting": ("◐", Tone.BUSY),
    "accepted": ("○", Tone.BUSY),
    "draining": ("↓", Tone.BUSY),
    "stopping": ("↓", Tone.BUSY),
    "suspect": ("?", Tone.WARN),
    "silent": ("?", Tone.WARN),
    "degraded": ("!", Tone.WARN),
    "backoff": ("↻", Tone.WARN),
    "acknowledged": ("✓", Tone.WARN),
    "superseded": ("→", Tone.DIM),
    "cancelled": ("×", Tone.DIM),
    "expired": ("×", Tone.WARN),
    "firing": ("!", Tone.BAD),
    "failed": ("✖", Tone.BAD),
    "lost": ("✗", Tone.BAD),
    "fatal": ("✖", Tone.BAD),
    "stopped": ("■", Tone.DIM),
}


_TWICE = re.compile(r" is (\w+) \((\1 .*)\)$")


def waited_for(sentences: Iterable[str]) -> str:
    """The waits of an operation: sentences such as `web-0 is pending (why)`."""
    return "waits: " + ", ".join(_TWICE.sub(r" is \2", each) for each in sentences)


def state(name: str) -> Span:
    """A sign and a word, so the state is readable without colours."""
    sign, tone = _STATES.get(name, ("·", Tone.PLAIN))
    return span(f"{sign} {name}", tone)


def alert_state(row: AlertRow) -> Span:
    return state("went away" if row.passed else row.state.value)


def severity(level: Severity) -> Span:
    sign, tone = {
        Severity.PAGE: ("‼", Tone.BAD),
        Severity.WARNING: ("!", Tone.WARN),
        Severity.INFO: ("·", Tone.PLAIN),
    }[level]
    return Span(f"{sign} {level.value}", tone)


def brief(seconds: float) -> str:
    """A duration in five cells: `12s`, `4m`, `2h05`, `3d4h`."""
    whole = max(0, int(seconds))
    if whole < 100:
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 100:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h{minutes % 60:02d}"
    return f"{days}d{hours % 24}h" if days < 10 else f"{days}d"


def quick(seconds: float) -> str:
    """A duration in five cells, with fractions of a second: `0.12s`, `12.3s`, `4m`."""
    return f"{max(0.0, seconds):.{2 if seconds < 9.995 else 1}f}s" if seconds < 99.95 else brief(seconds)


def ago(at: float, now: float) -> str:
    """How long ago, in five cells; empty if never."""
    return brief(now - at) if at else ""


def in_cells(text: str, width: int) -> str:
    """A number with as many significant digits as fit the width; its exponent is never cut. Other text is unchanged."""
    if len(text) <= width:
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    for digits in range(min(width, _MOST_DIGITS), 0, -1):
        plain = f"{number:.{digits}g}"
        for form in (plain, _EXPONENT.sub(_brief_exponent, plain)):
            if len(form) <= width:
                return form
    return text if abs(number) >= 1 else "0"


_MOST_DIGITS = 15
"""Significant digits of a float."""
_EXPONENT = re.compile(r"e([+-])0*")


def _brief_exponent(found: re.Match[str]) -> str:
    return f"e{found.group(1).strip('+')}"


def small_size(count: float) -> str:
    """Bytes in five cells: `712K`, `1.4G`."""
    for unit in ("B", "K", "M", "G", "T"):
        if abs(count) < 1000:
            return f"{count:.3g}{unit}" if count else "0"
        count /= 1024
    return f"{count:.3g}P"


def strength(row: GroupRow, *, down: bool = False) -> Span:
    """Desired against actual: `web 2/2`, `flaky 0/1 backoff 1`. Stopped units are fine in a run that is down,
    and in a group whose desired count is 0."""
    completed = row.other.get(COMPLETED, 0)
    others = " ".join(f"{name} {count}" for name, count in row.other.items() if count)
    paused = " paused" if row.paused else ""
    whole = row.ready + completed >= row.desired and not {*row.other} - {COMPLETED}
    unwanted = down or (row.desired == 0 and bool(row.other))
    if unwanted and row.ready == 0 and {*row.other} <= {COMPLETED, "stopped"}:
        ended = COMPLETED if not down and {*row.other} == {COMPLETED} else "stopped"
        return span(f"■{row.name} {ended}", Tone.DIM)
    coming = {*row.other} - {COMPLETED} <= {"pending", "starting", "draining", "stopping"}
    tone = Tone.WARN if row.paused else Tone.GOOD if whole else Tone.BUSY if coming else Tone.BAD
    sign = "" if whole and not row.paused else "↓" if row.paused else "◐" if coming else "!"
    text = f"{row.name} {row.ready + completed}/{row.desired}{f' {others}' if others else ''}{paused}"
    return span(f"{sign}{text}", tone)
