"""Defines the themes: colours and styles of tones.

Invariants:
- The colours are distinct for colour-blind people (after Okabe and Ito), on dark and on light.
- Without colours, tones use bold, dim and reverse.
- Stale data is all dim.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.color import Color
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.theme import Theme

from tui.model.styled_text import GROUND_NAMES, Line, Tone, as_ascii

DARK, LIGHT = "agentrl-dark", "agentrl-light"

_COLOURS = {
    DARK: {
        Tone.PLAIN: "#d5dae1",
        Tone.DIM: "#8590a0",
        Tone.STRONG: "#ffffff",
        Tone.GOOD: "#34c79f",
        Tone.BUSY: "#6cb8ee",
        Tone.WARN: "#f0a93b",
        Tone.BAD: "#ff7a59",
        Tone.ACCENT: "#e8cf6a",
    },
    LIGHT: {
        Tone.PLAIN: "#23282f",
        Tone.DIM: "#68717d",
        Tone.STRONG: "#000000",
        Tone.GOOD: "#006b4f",
        Tone.BUSY: "#0a5fa0",
        Tone.WARN: "#8f5200",
        Tone.BAD: "#b02a12",
        Tone.ACCENT: "#6b3fa0",
    },
}
_GROUNDS = {
    # screen, bars, the row under the cursor, matches
    DARK: ("#12161c", "#1d242d", "#2b3c50", "#5a4a12"),
    LIGHT: ("#fbfbf8", "#e9ebe6", "#cfe2f3", "#f6e3a1"),
}
_BOLD = {Tone.STRONG, Tone.BAD, Tone.ACCENT}
_WITHOUT_COLOUR = {
    Tone.DIM: Style(dim=True),
    Tone.STRONG: Style(bold=True),
    Tone.WARN: Style(bold=True),
    Tone.BAD: Style(bold=True),
    Tone.ACCENT: Style(bold=True),
}


Own = Mapping[str, Mapping[str, str]]
"""The person's own colours, by `dark` or `light` and their name."""


def _table(theme: str, own: Own) -> tuple[dict[Tone, str], tuple[str, ...]]:
    """The colours of tones and backgrounds, with the person's own."""
    mine = own.get(theme.removeprefix("agentrl-"), {})
    tones = {tone: mine.get(tone.value, usual) for tone, usual in _COLOURS[theme].items()}
    grounds = zip(GROUND_NAMES, _GROUNDS[theme], strict=True)
    return tones, tuple(mine.get(name, usual) for name, usual in grounds)


def themes(own: Own) -> list[Theme]:
    """The themes for dialogs and inputs, which Textual draws."""
    made = []
    for name in (DARK, LIGHT):
        tones, (ground, bar, cursor, _) = _table(name, own)
        made.append(
            Theme(
                name,
                primary=tones[Tone.BUSY],
                secondary=tones[Tone.DIM],
                warning=tones[Tone.WARN],
                error=tones[Tone.BAD],
                success=tones[Tone.GOOD],
                accent=tones[Tone.ACCENT],
                foreground=tones[Tone.PLAIN],
                background=ground,
                surface=ground,
                panel=bar,
                dark=name == DARK,
                variables={"input-cursor-foreground": ground, "block-cursor-background": cursor},
            )
        )
    return made


class Styles:
    """The styles of one theme."""

    def __init__(
        self,
        theme: str = DARK,
        *,
        colour: bool = True,
        ascii_only: bool = False,
        dimmed: bool = False,
        own: Own | None = None,
    ) -> None:
        self._ascii = ascii_only
        table = _table(theme, own or {})
        self._styles: dict[tuple[Tone, str], Style] = {}
        for tone in Tone:
            for ground in ("", "bar", "cursor", "match"):
                self._styles[tone, ground] = (
                    _coloured(table, tone, ground, dimmed) if colour else _plain(tone, ground, dimmed)
                )

    def strip(self, line: Line, width: int, ground: str = "") -> Strip:
        """A line on the screen."""
        segments = [
            Segment(as_ascii(text) if self._ascii else text, self._styles[tone, ground]) for text, tone in line if text
        ]
        return Strip(segments).adjust_cell_length(width, self._styles[Tone.PLAIN, ground]).simplify()


def _coloured(table: tuple[dict[Tone, str], tuple[str, ...]], tone: Tone, ground: str, dimmed: bool) -> Style:
    tones, (plain, bar, cursor, match) = table
    # Faults keep their colour on a dimmed screen.
    shown = tones[Tone.DIM] if dimmed and tone is not Tone.BAD else tones[tone]
    if ground == "cursor" and tone is Tone.DIM:
        shown = tones[Tone.PLAIN]
    behind = {"": plain, "bar": bar, "cursor": cursor, "match": match}[ground]
    return Style(
        color=Color.parse(shown), bgcolor=Color.parse(behind), bold=tone in _BOLD and (not dimmed or tone is Tone.BAD)
    )


def _plain(tone: Tone, ground: str, dimmed: bool) -> Style:
    style = _WITHOUT_COLOUR.get(tone, Style.null())
    if ground in ("bar", "cursor"):
        style = Style(bold=style.bold, underline=style.underline, reverse=True)
    elif ground == "match":
        style += Style(underline=True, bold=True)
    return Style(dim=True, reverse=style.reverse) if dimmed else style
