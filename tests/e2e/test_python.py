"""Every snippet of docs/python.md runs in its order against a live run. Those for notebooks need records:
`test_data_plane.py` runs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running import Run, running

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Run]:
    for run in running(tmp_path, "demo"):
        run.sidecar("web", ["sleep", "1000"])
        run.up()
        yield run


def test_every_snippet_works(demo: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(demo.home))
    snippets = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text().partition("\n## Notebooks")[0], re.MULTILINE | re.DOTALL
    )
    assert len(snippets) > 5
    known: dict[str, Any] = {"__name__": "snippet"}
    try:
        for number, snippet in enumerate(snippets, 1):
            exec(compile(snippet, f"{PAGE.name}, snippet {number}", "exec"), known)
    finally:
        if "client" in known:
            known["client"].close()
    assert known["ready"] == {"web": 1}
    assert known["operation"].state == "succeeded"
    assert known["consent"].effect.kills or known["consent"].effect.drains
    assert sorted(known["units"]) == ["unit/web-0"]
