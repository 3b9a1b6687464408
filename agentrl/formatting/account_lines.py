"""The account of a run as text: the counts of all kinds of documents, and the sums that do not agree."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.formatting.amounts import counted
from agentrl.protocol.data_commands import AccountProblem, AccountReport

ALL_AGREE = "All sums agree."


def totals(report: AccountReport) -> list[str]:
    """One line for each kind."""
    made = []
    for name, by_purpose in (("tasks", report.tasks), ("records", report.records)):
        for purpose, by_status in sorted(by_purpose.items()):
            made.append(f"{name} ({purpose}): {sum(by_status.values())} = {_sum(by_status)}")
    if not report.tasks:
        made.append("tasks: none yet; the steward makes them of the datasets of the run file")
    seats = dict(report.seats)
    wanted = f"{seats.pop('wanted')} wanted = " if "wanted" in seats else ""
    made.append(f"seats: {wanted}{_sum(seats)}")
    made.append(f"steps: {_sum(report.steps)}; {counted(report.trained_records, 'records trained')}")
    ended = f"{sum(report.outcomes.values())} = " if report.outcomes else ""
    made.append(f"attempts that ended: {ended}{_sum(report.outcomes)}")
    return made


def disagreement(problem: AccountProblem) -> str:
    more = " …" if problem.count > len(problem.examples) else ""
    return f"does not agree: {counted(problem.count, problem.what)}: {', '.join(problem.examples)}{more}"


def _sum(parts: Mapping[str, int]) -> str:
    return " + ".join(f"{count} {name}" for name, count in sorted(parts.items())) or "none"
