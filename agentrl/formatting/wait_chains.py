"""Who waits for whom, as people read it: of many waits the oldest, and none that is nothing. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from agentrl.formatting.amounts import age, counted
from agentrl.protocol.commands import WaitChain, WaitLink

MOST_WAITS = 3
"""Waits of one unit in a chain that are told one by one."""
NOTHING_S = 1.0
"""Shorter waits are how work goes from hand to hand."""
NOBODY = "Nobody waits."
ALL_WELL = "Nobody waits for longer than it should: what is waited for is being worked at."


class Told(NamedTuple):
    sentence: str
    overdue: bool


def worth_telling(chains: Iterable[WaitChain]) -> list[WaitChain]:
    """Those in which somebody waits for a while, or for something that is wrong."""
    return [chain for chain in chains if chain.amiss or any(link.age_s >= NOTHING_S for link in chain.links)]


def all_well(chains: Sequence[WaitChain]) -> bool:
    return not any(chain.amiss for chain in chains)


def of_chain(chain: WaitChain) -> Iterator[Told]:
    """The waits of a chain by who waits; of many of one unit the oldest, and how many more."""
    by_unit: dict[str, list[WaitLink]] = {}
    for link in chain.links:
        if link.overdue or link.age_s >= NOTHING_S:
            by_unit.setdefault(link.who, []).append(link)
    for who, links in by_unit.items():
        shown = links if len(links) <= MOST_WAITS else links[: MOST_WAITS - 1]
        for link in shown:
            # What a chain ends at is told with its end.
            what = f" ({link.what})" if link.what and link.what not in (link.on, chain.because) else ""
            yield Told(f"{who} waits for {link.on}{what}, {age(link.age_s)}", link.overdue)
        if more := links[len(shown) :]:
            late = sum(link.overdue for link in more)
            so_many = f", {late} of them overdue" if late else ""
            yield Told(f"{who} has {counted(len(more), 'more such waits')}{so_many}", False)


def end_of(chain: WaitChain) -> tuple[str, str]:
    """Where a chain ends: what it is called, and why. Who is merely at work is no culprit."""
    return "culprit" if chain.amiss else "ends at", f"{chain.culprit}: {chain.because}"
