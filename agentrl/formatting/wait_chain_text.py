"""Wait chains as text: the oldest waits of each unit, without very short ones. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from agentrl.formatting.amounts import age, counted
from agentrl.protocol.control_commands import WaitChain, WaitLink

MOST_WAITS = 3
"""Further waits of one unit in a chain are shown only as a number."""
NOTHING_S = 1.0
"""Shorter waits are normal."""
NO_WAITS = "No unit waits."
ALL_WELL = "No unit waits longer than it should: what it waits for is in progress."


class WaitLine(NamedTuple):
    sentence: str
    overdue: bool


def worth_showing(chains: Iterable[WaitChain]) -> list[WaitChain]:
    """Chains with a long wait or with a fault as their cause."""
    return [chain for chain in chains if chain.amiss or any(link.age_s >= NOTHING_S for link in chain.links)]


def all_well(chains: Sequence[WaitChain]) -> bool:
    return not any(chain.amiss for chain in chains)


def of_chain(chain: WaitChain) -> Iterator[WaitLine]:
    """The waits of a chain by unit: the oldest ones, and the number of further ones."""
    by_unit: dict[str, list[WaitLink]] = {}
    for link in chain.links:
        if link.overdue or link.age_s >= NOTHING_S:
            by_unit.setdefault(link.who, []).append(link)
    for who, links in by_unit.items():
        shown = links if len(links) <= MOST_WAITS else links[: MOST_WAITS - 1]
        for link in shown:
            # The cause of the chain is shown at its end.
            what = f" ({link.what})" if link.what and link.what not in (link.on, chain.because) else ""
            yield WaitLine(f"{who} waits for {link.on}{what}, {age(link.age_s)}", link.overdue)
        if more := links[len(shown) :]:
            late = sum(link.overdue for link in more)
            so_many = f", {late} of them overdue" if late else ""
            yield WaitLine(f"{who} has {counted(len(more), 'more such waits')}{so_many}", False)


def end_of(chain: WaitChain) -> tuple[str, str]:
    """The end of a chain: its label and the reason. A unit that is only working is not called a culprit."""
    return "culprit" if chain.amiss else "ends at", f"{chain.culprit}: {chain.because}"
