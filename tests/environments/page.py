"""The examples of docs/environments.md as files."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def write_shopping(folder: Path) -> Path:
    """The first example; returns its run file."""
    (folder / "shopping.py").write_text(blocks("python")[0])
    (folder / "shopping.jsonl").write_text(blocks("json")[0])
    (folder / "run.yaml").write_text(blocks("yaml")[0])
    return folder / "run.yaml"
