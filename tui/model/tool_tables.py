"""Defines the columns of tool servers, their tools, and their sandboxes with sessions.

Invariants:
- A sandbox that many sessions share has a row of its own, above those of its sessions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentrl.formatting import sandbox_text
from agentrl.formatting.amounts import moment, size
from agentrl.protocol.tool_commands import SandboxRow, ToolLogLine, ToolRow, ToolServerRow, ToolSessionRow
from tui.model import cell_text
from tui.model.styled_text import Line, Span, Tone, span, wrapped
from tui.model.table import Column, text_column

NEAR = 0.8
"""The share of its memory limit from which a sandbox is marked."""
_STATES = {
    "serving": ("●", Tone.GOOD),
    "session": ("●", Tone.GOOD),
    "shared": ("●", Tone.GOOD),
    "idle": ("○", Tone.DIM),
    "starting": ("◐", Tone.BUSY),
    "ending": ("↓", Tone.BUSY),
    "down": ("✖", Tone.BAD),
}


@dataclass(frozen=True, slots=True)
class Use:
    """A sandbox, or one of the sessions that share it."""

    sandbox: SandboxRow
    session: ToolSessionRow | None = None

    @property
    def key(self) -> str:
        return f"{self.sandbox.id} {self.session.id}" if self.session else self.sandbox.id

    @property
    def session_id(self) -> str:
        return self.session.id if self.session else self.sandbox.session

    @property
    def is_one_of_many(self) -> bool:
        return self.session is not None and self.sandbox.state == "shared"


def uses(sandboxes: Iterable[SandboxRow], sessions: Iterable[ToolSessionRow]) -> dict[str, Use]:
    """The rows of both by key."""
    held: dict[str, list[ToolSessionRow]] = {}
    for session in sessions:
        for sandbox in session.sandboxes:
            held.setdefault(sandbox, []).append(session)
    found = []
    for row in sandboxes:
        mine = held.get(row.id, [])
        if row.state == "shared":
            found += [Use(row), *(Use(row, session) for session in mine)]
        else:
            found.append(Use(row, mine[0] if mine else None))
    return {use.key: use for use in found}


def _state(name: str, breaker: str = "closed") -> Span:
    if breaker != "closed":
        return span(f"! breaker {breaker}", Tone.BAD)
    sign, tone = _STATES.get(name, ("·", Tone.PLAIN))
    return span(f"{sign} {name}", tone)


def _near(value: float) -> Span:
    return Span(sandbox_text.share(value), Tone.BAD if value >= NEAR else Tone.PLAIN)


def _count(value: float) -> Span:
    return Span(f"{value:g}" if value else "")


def _bytes(value: int) -> Span:
    return Span(size(value) if value else "")


def server_columns() -> tuple[Column[ToolServerRow], ...]:
    return (
        Column("id", "SERVER", 18, lambda row, now: span(row.id, Tone.STRONG), lambda row: row.id, least=8),
        Column("state", "STATE", 14, lambda row, now: _state(row.state, row.breaker), lambda row: row.state),
        text_column("mode", "MODE", 8, lambda row: row.session, rank=5),
        Column("sessions", "SESSIONS", 8, lambda row, now: _count(row.sessions), lambda row: row.sessions, True, 3),
        Column("boxes", "BOXES", 5, lambda row, now: _count(row.sandboxes), lambda row: row.sandboxes, True, 4),
        Column("memory", "MEM", 8, lambda row, now: _bytes(row.memory_bytes), lambda row: row.memory_bytes, True, 2),
        Column("near", "NEAR", 4, lambda row, now: _near(row.memory_share), lambda row: row.memory_share, True, 1),
        Column("running", "NOW", 4, lambda row, now: _count(row.running), lambda row: row.running, True, 2),
        Column("calls", "CALLS", 6, lambda row, now: _count(row.calls), lambda row: row.calls, True, 1),
        Column("failed", "FAILED", 6, lambda row, now: _count(row.failed), lambda row: row.failed, True, 1),
        Column("died", "DIED", 4, lambda row, now: _count(row.died), lambda row: row.died, True, 2),
        text_column("what", "WHAT", 20, server_what, Tone.DIM, stretches=True),
    )


def server_what(row: ToolServerRow) -> str:
    """What is wrong with the server, or else what it is."""
    return sandbox_text.trouble(row) or "; ".join(part for part in (row.version, row.sandbox) if part)


def tool_columns() -> tuple[Column[ToolRow], ...]:
    return (
        Column("name", "TOOL", 24, lambda row, now: span(row.name, Tone.STRONG), lambda row: row.name, least=12),
        Column("calls", "CALLS", 6, lambda row, now: _count(row.calls), lambda row: row.calls, True, 1),
        Column("failed", "FAILED", 6, lambda row, now: _count(row.failed), lambda row: row.failed, True, 2),
        Column("errors", "ERRORS", 6, lambda row, now: _count(row.errors), lambda row: row.errors, True, 1),
        Column("p50", "P50", 5, lambda row, now: _took(row.p50_s), lambda row: row.p50_s, True, 3),
        Column("p95", "P95", 5, lambda row, now: _took(row.p95_s), lambda row: row.p95_s, True, 2),
        text_column("effect", "EFFECT", 7, lambda row: row.effect, rank=4),
        text_column("what", "WHAT", 20, lambda row: row.description.strip().partition("\n")[0], Tone.DIM,
          stretches=True),
    )  # fmt: skip


def _took(seconds: float) -> Span:
    return Span(cell_text.quick(seconds) if seconds else "")


def use_columns() -> tuple[Column[Use], ...]:
    """Only the row of a sandbox shows its usage, so that no figure appears twice."""

    def figure(show: Span, use: Use) -> Span:
        return Span("") if use.is_one_of_many else show

    return (
        Column("box", "SANDBOX", 14, lambda use, now: _box(use), lambda use: (use.sandbox.id, use.session_id), least=8),
        Column("state", "STATE", 10, lambda use, now: _use_state(use), lambda use: use.sandbox.state),
        Column("memory", "MEM", 8, lambda use, now: figure(_bytes(use.sandbox.memory_bytes), use),
          lambda use: use.sandbox.memory_bytes, True, 1),
        Column("near", "NEAR", 4, lambda use, now: figure(_near(use.sandbox.memory_share), use),
          lambda use: use.sandbox.memory_share, True, 1),
        Column("cpu", "CPU", 5, lambda use, now: figure(_percent(use.sandbox), use),
          lambda use: use.sandbox.cpu_percent, True, 3),
        Column("processes", "PROCS", 5, lambda use, now: figure(_count(use.sandbox.processes), use),
          lambda use: use.sandbox.processes, True, 5),
        Column("files", "FILES", 5, lambda use, now: figure(_count(use.sandbox.open_files), use),
          lambda use: use.sandbox.open_files, True, 6),
        Column("calls", "CALLS", 5, lambda use, now: _count(_calls(use)), _calls, True, 4),
        Column("age", "AGE", 5, lambda use, now: Span(cell_text.ago(_since(use), now), Tone.DIM), _since, True, 3),
        text_column("who", "SESSION", 20, _who, stretches=True),
    )  # fmt: skip


def _box(use: Use) -> Span:
    name = sandbox_text.short(use.sandbox.id)
    return Span("  └", Tone.DIM) if use.is_one_of_many else span(name, Tone.STRONG)


def _use_state(use: Use) -> Span:
    if not use.is_one_of_many or use.session is None:
        return _state(use.sandbox.state)
    return Span("● calls", Tone.GOOD) if use.session.running else Span("○ idle", Tone.DIM)


def _percent(row: SandboxRow) -> Span:
    return Span(f"{row.cpu_percent:.0f}%" if row.measured_at else "")


def _calls(use: Use) -> int:
    return use.session.calls if use.is_one_of_many and use.session else use.sandbox.calls


def _since(use: Use) -> float:
    return use.session.opened_at if use.is_one_of_many and use.session else use.sandbox.started_at


def _who(use: Use) -> str:
    return use.session_id if use.is_one_of_many else sandbox_text.doing(use.sandbox)


def log_lines(lines: Iterable[ToolLogLine], width: int) -> list[Line]:
    """The newest last, as in a log."""
    found: list[Line] = []
    for line in lines:
        head = f"{moment(line.at)} {sandbox_text.short(line.sandbox)}  "
        first, *rest = wrapped(span(line.text).text, max(20, width - len(head))) or [""]
        found.append((Span(head, Tone.DIM), Span(first)))
        found += [(Span(" " * len(head)), Span(part)) for part in rest]
    return found or [(Span("It has written nothing yet.", Tone.DIM),)]
