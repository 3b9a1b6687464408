"""Draws a tree as lines. Only branches are indented, so that a long chain with one branch fits a narrow screen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

ROOT = -1


def heads(parents: Sequence[int]) -> list[str]:
    """The prefix of each node's line. Nodes are in depth-first order; a parent is an index, or ROOT."""
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
