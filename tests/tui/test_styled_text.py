"""Styled text: hostile text, widths in cells, trends, and ASCII."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tui.model.styled_text import Span, Tone, as_ascii, cut, fitted, folded, span, trend, width_of, wrapped

HOSTILE = st.text(
    alphabet=st.one_of(
        st.characters(),
        st.sampled_from("\x1b\x07\x9b[]31mABC\u202e\u200b界あ한\U0001f600e\u0301\u05d0\u0645\t\n"),
    ),
    max_size=60,
)


@given(text=HOSTILE, width=st.integers(0, 40), right=st.booleans())
def test_cell_has_exactly_its_width(text: str, width: int, right: bool) -> None:
    assert cell_len(fitted(span(text).text, width, right=right)) == width


@given(texts=st.lists(HOSTILE, max_size=4), width=st.integers(0, 50))
def test_line_is_cut_to_exactly_its_width(texts: list[str], width: int) -> None:
    assert width_of(cut([span(text) for text in texts], width)) == width


@given(texts=st.lists(HOSTILE, max_size=4), width=st.integers(1, 40), most=st.integers(1, 5))
def test_wrapped_line_loses_only_spaces(texts: list[str], width: int, most: int) -> None:
    tones = [Tone.BAD, Tone.DIM, Tone.PLAIN, Tone.GOOD]
    line = tuple(span(text, tone) for text, tone in zip(texts, tones, strict=False))
    made = folded(line, width, most)
    assert len(made) <= most
    for each in made[: most - 1]:
        assert width_of(each) <= max(2, width), "a sign may be wider than the line"
    signs = [(sign, tone) for text, tone in line for sign in text if sign != " "]
    assert [(sign, tone) for each in made for text, tone in each for sign in text if sign != " "] == signs


@given(text=HOSTILE)
def test_control_codes_in_data_do_not_reach_the_terminal(text: str) -> None:
    shown = span(f"{text}\x1b]0;title\x07\x1b[2J\r\nend", Tone.BAD).text
    assert "\x1b" not in shown
    assert not any(unicodedata.category(sign) in ("Cc", "Cs") for sign in shown)
    assert not any(unicodedata.bidirectional(sign) in ("RLO", "LRO", "RLE", "LRE", "PDF", "RLI") for sign in shown)


def test_ten_megabytes_are_cut_before_they_are_processed() -> None:
    assert len(span("x" * 10_000_000).text) < 5000


@given(text=HOSTILE)
def test_ascii_form_has_the_same_width(text: str) -> None:
    shown = span(text).text
    assert as_ascii(shown).isascii()
    assert cell_len(as_ascii(shown)) == cell_len(shown)


def test_signs_of_the_console_have_an_ascii_form() -> None:
    assert "?" not in as_ascii("●○◐✖✗✓↻■▸◆‼×↑↓←→▲▼…·│─≥≤⟨⟩‹›«»↵≠≡├└▁▂▃▄▅▆▇█")


@given(values=st.lists(st.floats(-1e9, 1e9), max_size=50), width=st.integers(0, 30))
def test_trend_is_as_long_as_its_values_or_the_width(values: list[float], width: int) -> None:
    assert len(trend(values, width)) == min(len(values), width)


def test_trend_is_scaled_from_the_least_to_the_greatest_value() -> None:
    assert trend([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert trend([5, 5, 5], 8) == "▁▁▁"
    assert trend([50], 8, low=0, high=100) == "▅"


@given(text=HOSTILE, width=st.integers(1, 30))
def test_wrapped_words_fit_and_are_complete(text: str, width: int) -> None:
    shown = span(text).text
    lines = wrapped(shown, width)
    assert "".join("".join(lines).split()) == "".join(shown.split())
    assert all(cell_len(line) <= max(width, 2) for line in lines)


def test_cut_line_ends_with_an_ellipsis() -> None:
    assert "".join(part.text for part in cut((Span("a long "), Span("sentence")), 10)) == "a long se…"
    assert "".join(part.text for part in cut((Span("abc"), Span("def")), 3)) == "ab…"
