"""The documentation names only files that exist.

Invariants:
- Every relative link of a page leads to a file.
- Every path in code style that begins with a room exists, from the root of the repository or from `agentrl/`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
CODE_PATH = re.compile(r"`([a-z_]+/[\w./]*[\w/])`")
ROOTS = (CHECKOUT, CHECKOUT / "agentrl")
# These are directories of a run as well as rooms of the code.
OF_A_RUN = ("runs/", "recordings/", "hosts/", "logs/")


def begins_with_a_room(path: str) -> bool:
    return not path.startswith(OF_A_RUN) and any((root / path.split("/")[0]).is_dir() for root in ROOTS)


def in_repository(path: str) -> bool:
    return any((root / path).exists() for root in ROOTS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = {path for path in CODE_PATH.findall(page.read_text()) if begins_with_a_room(path)}
    assert sorted(path for path in named if not in_repository(path)) == []
