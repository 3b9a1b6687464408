"""The examples of docs/environments.md and docs/judges.md as files."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "environments.md").read_text()
JUDGES = (DOCS / "judges.md").read_text()


def blocks(language: str, page: str = PAGE) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def write_shopping(folder: Path) -> Path:
    """The first example; returns its run file."""
    (folder / "shopping.py").write_text(blocks("python")[0])
    (folder / "shopping.jsonl").write_text(blocks("json")[0])
    (folder / "run.yaml").write_text(blocks("yaml")[0])
    return folder / "run.yaml"
