"""Token trees as lines."""

from __future__ import annotations

from agentrl.formatting.token_tree_text import ROOT, heads


def test_a_chain_stays_in_its_column_and_branches_are_indented() -> None:
    #        0     1  2  3  4  5  6
    parents = [ROOT, 0, 1, 2, 1, 4, 0]
    assert heads(parents) == ["", "├─ ", "│  ├─ ", "│  │  ", "│  └─ ", "│     ", "└─ "]


def test_a_long_chain_is_not_indented() -> None:
    assert set(heads([ROOT, *range(999)])) == {""}
    assert heads([ROOT, ROOT]) == ["├─ ", "└─ "]
    assert heads([]) == []
