"""Replays a failed tool call of a live run and forks its record. The demo and the tour show it.

Invariants: it uses only commands that a person could type; it ends when every fork is over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from assets.demo_operator import Operator

_FAILED = "error_class=infrastructure and record~/train/"
_UNDER_WAY = frozenset({"open", "running"})
WITHIN_S = 300.0


@dataclass(frozen=True, slots=True)
class Forked:
    """A failed call, its replay, and the outcome of the fork of its record."""

    call: str
    verdict: str
    kind: str
    """`repair` or `branch`."""
    statuses: tuple[str, ...]
    scores: tuple[float, ...]


def replay_and_fork(operator: Operator, say: Callable[[str], None]) -> Forked:
    found = operator.until("a tool call failed", lambda: _newest(operator), WITHIN_S)
    say(f"{found['server']}.{found['tool']}({json.dumps(found['arguments'])}) failed: {found['result']}")
    operator.types("replay", found["id"], "--yes")
    replay = operator.types("replays", "list", "--filter", f"call='{found['id']}'", quiet=True)["rows"][0]
    say(f"{found['tool']} ran again in a session of its own; the verdict is: {replay['verdict']}.")
    operation = operator.types("fork", "--replay", replay["id"], "--yes")["operation"]
    for line in operation["lines"]:
        say(line)
    forks = operator.until("the forks are over", lambda: _over(operator, found["record"]), WITHIN_S)
    forked = Forked(
        call=found["id"],
        verdict=replay["verdict"],
        kind=str(forks[0]["fork"]["kind"]),
        statuses=tuple(row["status"] for row in forks),
        scores=tuple(row["score"] for row in forks if row["score"] is not None),
    )
    scores = ", ".join(f"{score:g}" for score in forked.scores) or "none of them"
    say(f"An agent went on from there at current weights, {len(forks)} times; scored: {scores}.")
    return forked


def _newest(operator: Operator) -> Any:
    rows = operator.types("calls", "list", "--failed", "--filter", _FAILED, "--limit", "1", quiet=True)["rows"]
    return operator.types("calls", "show", rows[0]["id"])["call"] if rows else None


def _over(operator: Operator, record: str) -> Any:
    rows = operator.types("records", "list", "--filter", f"base='{record}'", quiet=True)["rows"]
    return rows if rows and not _UNDER_WAY & {row["status"] for row in rows} else None
