"""Formats the lines around a view: the run and the age of its data, the tabs, the notice, and the keys of the view."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from agentrl.formatting.amounts import age
from agentrl.formatting.row_text import uptime
from agentrl.protocol.rows import PAUSED, Severity
from tui.model import actions, cell_text
from tui.model.actions import VIEWS, Action, sign
from tui.model.mirror import STALE_S, Mirror
from tui.model.playback import Playback
from tui.model.styled_text import Line, Span, Tone, cut, fitted, span, width_of, wrapped

MOST_LINES = 3
"""Lines of the notice."""


@dataclass(frozen=True, slots=True)
class HeaderState:
    """The state that the header shows besides the rows of the run."""

    now: float
    clock: float
    next_try_s: float | None = None
    read_only: bool = False
    frozen_s: float | None = None
    playback: str = ""
    """How a recording is played; empty for a live run."""


def header(mirror: Mirror, at: HeaderState, width: int) -> Line:
    """The run on the left, the age of its data on the right; the right side is never cut."""
    right = _freshness(mirror, at)
    room = max(0, width - width_of(right) - 1)
    return (*cut(_run(mirror, at), room), Span(" "), *right)


def _run(mirror: Mirror, at: HeaderState) -> Line:
    run = mirror.run
    name = span(f" {run.name if run else mirror.name or 'agentrl'} ", Tone.STRONG)
    if not mirror.link.connected:
        since_s = at.clock - mirror.link.since if mirror.link.tries else 0.0
        if not mirror.link.tries:
            return (name, Span("connecting", Tone.BUSY))
        moment = time.strftime("%H:%M:%S", time.localtime(at.now - since_s))
        retry = f", tried again in {at.next_try_s:.0f} s" if at.next_try_s is not None and at.next_try_s >= 1 else ""
        lost = Span(f"✗ no connection since {moment} ({age(since_s)}){retry}: ", Tone.BAD)
        return (name, lost, span(mirror.link.why))
    if run is None:
        return (name,)
    parts = [name, cell_text.state(run.state)]
    for detail in (
        "paused" if run.paused and run.state != PAUSED else "",
        run.reason,
        f"up {up}" if (up := uptime(run, at.now)) else "",
        f"segment {run.segment}" if run.segment else "",
    ):
        if detail:
            parts += [Span(" · ", Tone.DIM), span(detail)]
    for trouble in (run.journal_full, run.not_listening, run.not_recording, run.not_exporting):
        if trouble:
            parts += [Span(" · ", Tone.DIM), span(trouble, Tone.BAD)]
    return tuple(parts)


def notice(message: Line, width: int) -> list[Line]:
    """A message, wrapped if it is long; the spans behind its sentence are never cut."""
    sentence, *behind = message or (Span(""),)
    room = width - 1
    lines = [Span(part, sentence.tone) for part in wrapped(sentence.text, room)]
    beside = len(lines) <= MOST_LINES and width_of((lines[-1], *behind)) <= room
    most = MOST_LINES if beside or not behind else MOST_LINES - 1
    if len(lines) > most:
        left = " ".join(each.text for each in lines[most - 1 :])
        lines[most - 1 :] = [Span(fitted(left, room), sentence.tone)]
    made: list[Line] = [(Span(" "), each) for each in lines]
    if beside:
        made[-1] = (*made[-1], *behind)
    elif behind:
        made.append((Span(" "), *behind))
    return made


def _freshness(mirror: Mirror, at: HeaderState) -> Line:
    parts = list[Span]()
    if at.playback:
        return (Span(f" {at.playback} ", Tone.ACCENT),)
    if at.read_only:
        parts.append(Span("read-only ", Tone.WARN))
    if at.frozen_s is not None:
        parts.append(Span(f"frozen {cell_text.brief(at.frozen_s)} ", Tone.WARN))
    old = mirror.age_s(at.clock)
    if old is None:
        parts.append(Span("no data ", Tone.DIM))
    else:
        shown = f"{old:.0f} s" if old < 100 else cell_text.brief(old)
        parts.append(Span(f"data {shown} old ", Tone.WARN if old > STALE_S else Tone.DIM))
    parts.append(Span(time.strftime("%H:%M:%S ", time.localtime(at.now)), Tone.DIM))
    return tuple(parts)


def played(playback: Playback) -> str:
    """The recording, its position and its speed."""
    speed = f"×{playback.speed:g}"
    # The speed can be changed while the recording is stopped, too.
    how = "at its end" if playback.over else speed if playback.playing else f"stands, {speed}"
    return f"{playback.what} · {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(playback.position))} · {how}"


def tabs(mirror: Mirror, view: str, heading: str, filter_text: str, width: int) -> Line:
    """The names of the views, shortened if needed, so that the heading of the present view fits, too."""
    behind = list[Span]()
    if heading:
        behind += [Span("  ▸ ", Tone.DIM), span(heading, Tone.STRONG)]
    if filter_text:
        behind += [Span("  /", Tone.ACCENT), span(filter_text, Tone.ACCENT)]
    for name_of, gap in _TABS:
        parts = [*_names(mirror, view, name_of, gap), *behind]
        if width_of(parts) <= width:
            break
    return cut(parts, width)


_SHORT = {"overview": "view", "tuning": "tune", "records": "recs", "training": "train"}


def _short(name: str) -> str:
    return _SHORT.get(name, name)


def _no_name(name: str) -> str:
    return ""


_TABS: tuple[tuple[Callable[[str], str], str], ...] = ((str, " "), (str, ""), (_short, ""), (_no_name, ""))
"""Forms of the names of other views, and the gap between digit and name; no name is ever cut."""


def _names(mirror: Mirror, view: str, name_of: Callable[[str], str], gap: str) -> Iterator[Span]:
    for number, name in enumerate(VIEWS, 1):
        here = name == view
        yield Span(f" {number}{gap}", Tone.ACCENT if here else Tone.DIM)
        yield Span(name if here else name_of(name), Tone.STRONG if here else Tone.PLAIN)
        if name == "alerts" and (firing := mirror.firing):
            pages = any(row.severity is Severity.PAGE for row in firing)
            yield Span(f" {'‼' if pages else '!'}{len(firing)}", Tone.BAD if pages else Tone.WARN)


def footer(possible: Iterable[Action], width: int) -> Line:
    """The most important keys of the view, as many as fit."""
    ranked = sorted((a for a in possible if a.footer and a.keys), key=lambda a: -a.footer)
    kept, left = set[str](), width - 1
    for action in ranked:
        taken = len(sign(action.keys[0])) + len(action.title) + 3
        if taken <= left:
            kept.add(action.id)
            left -= taken
    shown = sorted((a for a in ranked if a.id in kept), key=lambda a: (actions.EVERYWHERE in a.where, -a.footer))
    parts = [Span(" ")]
    for action in shown:
        parts += [Span(sign(action.keys[0]), Tone.ACCENT), Span(f" {action.title}  ", Tone.DIM)]
    return cut(parts, width)
