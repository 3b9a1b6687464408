"""Services of other models in words: whether they are in use now, and their limits."""

from __future__ import annotations

from agentrl.formatting.amounts import age, counted
from agentrl.protocol.other_model_commands import ServiceRow

ASKED, LIMIT, RESTS, FAILS = "asked", "limit", "rests", "fails"


def kind_of_state(row: ServiceRow, now: float) -> str:
    if row.rests_until > now:
        return RESTS
    if row.failing_at:
        return FAILS
    return LIMIT if row.per_minute and row.this_minute > row.per_minute else ASKED


def state(row: ServiceRow, now: float) -> str:
    match kind_of_state(row, now):
        case "rests":
            return f"rests {age(row.rests_until - now)}"
        case "fails":
            return "its last try failed"
        case "limit":
            return "at its limit"
    return "is asked"


def limits(row: ServiceRow) -> str:
    """`42 of 60 a minute, 16 at once, 60 s`"""
    used = min(row.this_minute, row.per_minute)
    per_minute = f"{used} of {row.per_minute} a minute, " if row.per_minute else ""
    return f"{per_minute}{row.at_once} at once, {row.timeout_s:g} s"


def trouble(row: ServiceRow, now: float) -> str:
    """The last failure and its place; empty if the service answers."""
    if not row.failing_at:
        return ""
    where = (
        f" at {row.failing_at[0]}" if len(row.failing_at) == 1 else f" at {counted(len(row.failing_at), 'samplers')}"
    )
    times = f"{counted(row.failures, 'times')} in a row, " if row.failures > 1 else ""
    return f"{times}{age(now - row.failed_at)} ago{where}: {row.error}"


def price(row: ServiceRow) -> str:
    """The prices of a million input tokens and of a million output tokens."""
    return f"{row.price_in:g}/{row.price_out:g}" if row.price_in or row.price_out else ""
