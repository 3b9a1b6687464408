"""Snapshots of screens as plain text, one file per screen, and their differences.

A file has one part per condition, whose heading names the sizes of terminals. A line of a part is a row of the screen:
how many times it stands at this place in each size (`.` is never), its text, and after `~` its tones:

    === normal 80x24 120x40 200x60
      1  1  .| web-0  ● ready   5m ~ .1 p6 g7 p
      9 25 45|

`.1 p6 g7 p` means one blank cell, six plain ones, seven good ones, and plain ones up to the edge. Blank cells at the
end are left out.

Invariants:
- the file gives back every cell of the screen: `decode(encode(pictures)) == pictures`;
- a row that two sizes share is stored once if it stands between the same rows;
- a snapshot without a screen is an error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.cells import cell_len
from rich.style import Style
from textual.strip import Strip

from tests.tui.conftest import Screen

HERE = Path(__file__).parent / "snapshots"
HOW = "If the new ones are right: pytest tests/tui/test_snapshots.py --renew, and look at `git diff`."
_HEAD, _TEXT, _TONES = "=== ", "|", " ~ "
_LETTERS = {"strong": "S", "busy": "u", "bad": "B"}
_GROUNDS = {"": "", "bar": "-", "cursor": ">", "match": "?"}
_BLANK = "."
"""The tone of cells that show neither text nor a background."""

Size = tuple[int, int]
"""Columns and lines."""
Counts = tuple[int, ...]
"""How many times a row stands at one place, for each size."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a terminal."""

    text: str
    tones: tuple[tuple[str, int], ...]
    """Each tone with its number of cells; neighbours differ."""

    def code(self) -> str:
        """The row without what follows from the width of the terminal."""
        runs, edge = self.tones, len(self.tones) - 1
        if runs[-1][0] == _BLANK:
            runs = runs[:-1]
        tones = " ".join(f"{tone}{'' if n == edge else cells}" for n, (tone, cells) in enumerate(runs))
        text = self.text.rstrip(" ")
        return f"{text}{_TONES}{tones}" if tones or _TONES in text else text

    @classmethod
    def of(cls, code: str, width: int) -> Row:
        text, _, tones = code.rpartition(_TONES) if _TONES in code else (code, "", "")
        runs: list[tuple[str, int]] = []
        left = width
        for run in tones.split():
            tone, cells = re.fullmatch(r"(\D+)(\d*)", run).groups()  # type: ignore[union-attr]
            runs.append((tone, int(cells or left)))
            left -= runs[-1][1]
        if left:
            runs.append((_BLANK, left))
        return cls(text + " " * (width - cell_len(text)), tuple(runs))


Picture = tuple[Row, ...]


def picture(screen: Screen) -> Picture:
    styles = screen.app.line_styles._styles
    names: dict[Style | None, str] = {}
    for (tone, ground), style in reversed(styles.items()):
        names[style] = _letter(tone, ground)
    return tuple(Row(strip.text, _tones(strip, names)) for strip in screen.app.screen._compositor.render_strips())


def _letter(tone: str, ground: str) -> str:
    return _GROUNDS[ground] + _LETTERS.get(tone, tone[0])


def _tones(strip: Strip, names: Mapping[Style | None, str]) -> tuple[tuple[str, int], ...]:
    cells: list[tuple[str, int]] = []
    for segment in strip:
        # Cells that Textual draws itself (inputs, frames) are x.
        name, width = names.get(segment.style, "x"), cell_len(segment.text)
        blank = not segment.text.strip() and name in ("p", "x")
        if width:
            cells.append((_BLANK if blank else name, width))
    return tuple((name, sum(width for _, width in group)) for name, group in groupby(cells, key=lambda cell: cell[0]))


def encode(pictures: Mapping[Size, Picture]) -> str:
    """The pictures of one condition as lines of a file."""
    sizes = sorted(pictures)
    lines = _merged([[row.code() for row in pictures[size]] for size in sizes])
    head = " ".join(f"{width}x{height}" for width, height in sizes)
    tags = ("".join(f"{count or _BLANK:>3}" for count in counts) for counts, _ in lines)
    return "\n".join([head, *(f"{tag}{_TEXT}{code}" for tag, (_, code) in zip(tags, lines, strict=True))])


def _merged(screens: Sequence[Sequence[str]]) -> list[tuple[Counts, str]]:
    """The rows of all screens in one order that is the order of each."""
    merged: list[tuple[Counts, str]] = []
    for number, codes in enumerate(screens):
        runs = [(code, len(list(same))) for code, same in groupby(codes)]
        before = difflib.SequenceMatcher(None, [code for _, code in merged], [code for code, _ in runs], autojunk=False)
        grown: list[tuple[Counts, str]] = []
        for change, i, i_end, j, j_end in before.get_opcodes():
            if change == "equal":
                pairs = zip(merged[i:i_end], runs[j:j_end], strict=True)
                grown += [((*counts, count), code) for (counts, code), (_, count) in pairs]
            else:
                grown += [((*counts, 0), code) for counts, code in merged[i:i_end]]
                grown += [((*(0,) * number, count), code) for code, count in runs[j:j_end]]
        merged = grown
    return merged


def decode(part: str) -> dict[Size, Picture]:
    head, *lines = part.split("\n")
    sizes = [(int(width), int(height)) for width, height in (size.split("x") for size in head.split())]
    rows: dict[Size, list[Row]] = {size: [] for size in sizes}
    for line in lines:
        counts, _, code = line.partition(_TEXT)
        for size, count in zip(sizes, counts.split(), strict=True):
            if count != _BLANK:
                rows[size] += [Row.of(code, size[0])] * int(count)
    return {size: tuple(of_size) for size, of_size in rows.items()}


class Album:
    """The snapshots of one screen, by condition and size."""

    def __init__(self, name: str) -> None:
        self.path = HERE / f"{name.replace(' ', '-')}.txt"
        self.pictures: dict[str, dict[Size, Picture]] = {}
        if self.path.exists():
            for part in self.path.read_text().removeprefix(_HEAD).split(f"\n{_HEAD}"):
                times, _, body = part.partition(" ")
                self.pictures[times] = decode(body.rstrip("\n"))

    def put(self, drawn: Mapping[Size, Picture], times: str) -> None:
        """Replace all snapshots of these conditions."""
        self.pictures[times] = dict(drawn)
        parts = sorted(self.pictures.items())
        self.path.write_text("\n".join(f"{_HEAD}{times} {encode(pictures)}\n" for times, pictures in parts))

    def of(self, times: str) -> set[Size]:
        return set(self.pictures.get(times, ()))

    def changes(self, times: str, size: Size, now: Picture) -> str:
        """The difference as a diff; empty if there is none."""
        before, title = self.pictures.get(times, {}).get(size), f"{times} {size[0]}x{size[1]}"
        if before == now:
            return ""
        codes = [row.code() for row in now]
        if before is None:
            return "\n".join([f"{self.path.name} has no picture {title!r}:", *codes])
        diff = difflib.unified_diff(
            [row.code() for row in before], codes, f"{self.path.name}, {title}", "now", lineterm="", n=1
        )
        return "\n".join(diff)
