"""Snapshots of screens as plain text, one file per screen, and their differences.

Invariants:
- a snapshot contains the text of a terminal line by line, and then the tones of every line;
- a file holds the snapshots of one screen in all conditions and sizes, in that order;
- a snapshot without a screen is an error.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from rich.cells import cell_len
from textual.strip import Strip

from tests.tui.conftest import Screen
from tui.widgets.themes import Styles

HERE = Path(__file__).parent / "snapshots"
HOW = "If the new ones are right: pytest tests/tui/test_snapshots.py --renew, and look at `git diff`."
_HEAD, _TEXT, _TONES = "=== ", "|", "~ "
_LETTERS = {"strong": "S", "busy": "u", "bad": "B"}
_GROUNDS = {"": "", "bar": "-", "cursor": ">", "match": "?"}


def picture(screen: Screen) -> str:
    """The text of the screen, then its tones: `4 S5 d20` means line 4, five cells strong, twenty dim."""
    strips = screen.app.screen._compositor.render_strips()
    text = [f"{_TEXT}{strip.text.rstrip()}" for strip in strips]
    return "\n".join([*text, *_toned(strips, screen.app.line_styles)])


def _toned(strips: Iterable[Strip], paint: Styles) -> list[str]:
    """Consecutive lines with the same tones are listed once."""
    names = {style: _letter(tone, ground) for (tone, ground), style in reversed(paint._styles.items())}
    shown: list[str] = []
    lines = [_runs(strip, names) for strip in strips]
    at = 0
    for runs, same in groupby(lines):
        first, at = at, at + len(list(same))
        if runs:
            shown.append(f"{_TONES}{first}{f'-{at - 1}' if at - 1 > first else ''} {runs}")
    return shown


def _letter(tone: str, ground: str) -> str:
    return _GROUNDS[ground] + _LETTERS.get(tone, tone[0])


def _runs(strip: Strip, names: dict[object, str]) -> str:
    cells: list[tuple[str, int]] = []
    for segment in strip:
        # Cells that Textual draws itself (inputs, frames) are x.
        name, width = names.get(segment.style, "x"), cell_len(segment.text)
        blank = not segment.text.strip() and name in ("p", "x")
        cells.append(("." if blank else name, width))
    runs = [(name, sum(width for _, width in group)) for name, group in groupby(cells, key=lambda cell: cell[0])]
    while runs and runs[-1][0] == ".":
        runs.pop()
    return " ".join(f"{name}{width}" for name, width in runs if width)


class Album:
    """The snapshots of one screen."""

    def __init__(self, name: str) -> None:
        self.path = HERE / f"{name.replace(' ', '-')}.txt"
        self.pictures: dict[str, str] = {}
        if self.path.exists():
            for part in self.path.read_text().split(f"\n{_HEAD}"):
                title, _, body = part.removeprefix(_HEAD).partition("\n")
                self.pictures[title] = body.rstrip("\n")

    def put(self, drawn: dict[str, str], times: str) -> None:
        """Replace all snapshots of these conditions."""
        kept = {title: body for title, body in self.pictures.items() if title.split()[0] != times}
        self.pictures = dict(sorted((kept | drawn).items()))
        self.path.write_text("".join(f"{_HEAD}{title}\n{body}\n\n" for title, body in self.pictures.items()))

    def of(self, times: str) -> set[str]:
        return {title for title in self.pictures if title.split()[0] == times}

    def changes(self, title: str, now: str) -> str:
        """The difference as a diff; empty if there is none."""
        before = self.pictures.get(title)
        if before == now:
            return ""
        if before is None:
            return f"{self.path.name} has no picture {title!r}:\n{now}"
        diff = difflib.unified_diff(
            before.splitlines(), now.splitlines(), f"{self.path.name}, {title}", "now", lineterm="", n=1
        )
        return "\n".join(diff)
