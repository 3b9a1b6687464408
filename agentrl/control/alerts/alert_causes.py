"""Names the alert that explains another one, so that people see a cause and not its consequences first. Pure.

Invariants:
- The rule of a cause comes earlier in `CAUSES` than the rule of its consequence, so causes form no circle.
- The cause of a page is never less severe than the page: otherwise the page stays a separate alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentrl.formatting.row_text import SEVERITY_ORDER
from agentrl.protocol.rows import AlertRow

CAUSES = (
    "host-lost",
    "unit-fatal",
    "unit-lost",
    "unit-restarting",
    "unit-never-ready",
    "unit-hung",
    "unit-problem",
    "unit-pending",
    "tool-restarts",
    "tool-unhealthy",
    "tool-server-left-alone",
    "tool-fails",
    "no-progress",
    "no-step",
)
"""Rules whose alerts can explain others, the deepest cause first."""
_DEPTH = {rule: depth for depth, rule in enumerate(CAUSES)}


def cause_of(row: AlertRow, explained_by: Iterable[str], active: Mapping[str, AlertRow]) -> str:
    """The id of the deepest active alert about one of the subjects; empty if none explains this one."""
    subjects = tuple(explained_by)
    for rule in CAUSES[: _DEPTH.get(row.rule, 0)]:
        for subject in subjects:
            found = active.get(f"{rule}:{subject}")
            if found is not None and SEVERITY_ORDER.index(found.severity) <= SEVERITY_ORDER.index(row.severity):
                return found.id
    return ""
