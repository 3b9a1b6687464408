"""Formats tool servers and their sandboxes as text, the same on the command line and in the console."""

from __future__ import annotations

from collections.abc import Iterable

from agentrl.formatting.amounts import age, counted, size
from agentrl.protocol.tool_commands import MissingUnit, SandboxRow, ToolServerRow, ToolSessionRow


def memory(row: SandboxRow) -> str:
    """`212M of 256M`; only the used memory if there is no limit."""
    if not row.measured_at:
        return ""
    return (
        f"{size(row.memory_bytes)} of {size(row.memory_limit_bytes)}"
        if row.memory_limit_bytes
        else size(row.memory_bytes)
    )


def share(value: float) -> str:
    return f"{value:.0%}" if value else ""


def used(count: int, limit: int) -> str:
    return f"{count}/{limit}" if limit else str(count or "")


def doing(row: SandboxRow) -> str:
    """The sessions that it serves, and the calls that it runs now."""
    whom = row.session or (counted(row.sessions, "sessions") if row.sessions else "")
    return ": ".join(part for part in (row.purpose, whom, ", ".join(row.doing)) if part)


def short(id: str) -> str:
    """The id without its toolbox."""
    return id.rpartition("/")[2]


def state(row: ToolServerRow) -> str:
    return row.state if row.breaker == "closed" else f"{row.state}, breaker {row.breaker}"


def trouble(row: ToolServerRow) -> str:
    """Why the tool server is not usable, or its last failure."""
    return row.why or row.unhealthy or (row.last_failure if row.breaker != "closed" else "")


def session_state(row: ToolSessionRow) -> str:
    return f"{counted(len(row.running), 'calls')} under way" if row.running else f"idle for {age(row.idle_s)}"


def missing_units(missing: Iterable[MissingUnit]) -> str:
    """`toolbox-1 (did not answer within 5 s), toolbox-2 (backoff for 12 s: exit 1)`"""
    return ", ".join(f"{each.unit} ({each.why})" for each in missing)


def incomplete(missing: Iterable[MissingUnit]) -> str:
    """One line below rows; empty if no unit is missing."""
    units = missing_units(missing)
    return f"Rows are missing of {units}." if units else ""
