"""Trees as lines: what goes on stays in its column, only what branches is indented.

Invariant: a chain of any length takes no width, so a long conversation with one branch fits a narrow screen.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

ROOT = -1


def heads(parents: Sequence[int]) -> list[str]:
    """What stands before each node. Nodes are in depth-first order; a parent is a place in it, or ROOT."""
    children: dict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(parents):
        children[parent].append(node)
    carried, made = {ROOT: ""}, list[str]()
    for node, parent in enumerate(parents):
        before, siblings = carried[parent], children[parent]
        if len(siblings) == 1:
            made.append(before)
            carried[node] = before
        else:
            last = node == siblings[-1]
            made.append(before + ("└─ " if last else "├─ "))
            carried[node] = before + ("   " if last else "│  ")
    return made
