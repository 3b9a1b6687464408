"""Text that is safe for a terminal: nothing is invisible, and nothing leaves its line."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from agentrl.formatting.safe_text import sanitise, sanitise_lines

MARKS = st.characters(categories=("Mn", "Mc", "Me"))
FILLERS = "\u115f\u1160\u3164\uffa0\u17b4\u2800\U00016fe4\U0001d159"
ZERO_WIDTH = [sign for sign in map(chr, range(0x300, 0x20000)) if cell_len(sign) == 0]
IGNORED = ("VARIATION SELECTOR", "FILLER", "ZERO WIDTH", "INVISIBLE ", "GRAPHEME JOINER", "PATTERN BLANK")
"""Words in the names of invisible characters. Some visible characters have these words in their names too."""
SEEN = ("GAP FILLER", "LINE FILLER")
RESERVED = (*range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000), 0x2065)
"""Reserved by Unicode for invisible characters."""


@settings(deadline=None)
@given(st.text(st.one_of(MARKS, MARKS, MARKS, st.characters(categories=("Ll", "Lo", "So"))), max_size=40))
def test_no_character_carries_many_marks_in_any_script(text: str) -> None:
    kinds = "".join("m" if unicodedata.category(sign) in ("Mn", "Mc", "Me") else "." for sign in sanitise(text))
    assert not re.search("m{5}", kinds)


@pytest.mark.parametrize(
    ("base", "mark"), [("ب", "\u064b"), ("ก", "\u0e49"), ("ש", "\u05b0"), ("क", "\u0951"), ("e", "\u0301")]
)
def test_few_marks_stay(base: str, mark: str) -> None:
    assert sanitise(base + mark * 2) == base + mark * 2
    assert sanitise(base + mark * 3000) == base + mark * 4


@pytest.mark.parametrize("filler", FILLERS)
def test_empty_looking_letter_is_replaced(filler: str) -> None:
    assert sanitise(f"admin{filler}") != "admin"
    assert filler not in sanitise(f"admin{filler}")
    assert sanitise(f"admin{filler}").endswith("\ufffd")


def test_drawings_and_emoji_stay() -> None:
    text = "━━━━━━━━ █▇▆▅▄▃▂▁ →→→→→→ 😀😀😀😀😀😀"
    assert sanitise(text) == text


def _is_invisible(sign: str) -> bool:
    name = unicodedata.name(sign, "")
    moves = unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    named = any(word in name for word in IGNORED) and not any(word in name for word in SEEN)
    return moves or named or ord(sign) in RESERVED


def _blocks() -> Iterable[range]:
    """All characters except most ideographs and those for private use."""
    return (range(start, start + 0x1000) for start in (*range(0, 0x20000, 0x1000), 0xE0000))


def test_no_remaining_character_is_invisible_or_moves_the_text() -> None:
    for block in _blocks():
        text = "".join(f"a{chr(sign)}" for sign in block)
        one, several = sanitise(text), sanitise_lines(text)
        hidden = [f"U+{ord(sign):04X}" for sign in {*one, *several} - {"\t", "\n"} if _is_invisible(sign)]
        assert not hidden
        assert not {"\t", "\n"} & {*one}
        # The letters stay, but an escape removes the letter after it.
        assert len(block) - 1 <= one.count("a") <= len(block) + 1


def test_at_most_four_characters_of_no_width_follow_a_letter() -> None:
    for sign in ZERO_WIDTH:
        heap = sanitise("a" + sign * 50)
        assert sum(cell_len(each) == 0 for each in heap) <= 4, f"U+{ord(sign):04X}"


@settings(deadline=None)
@given(st.text(st.one_of(st.sampled_from(ZERO_WIDTH), st.characters()), max_size=60))
def test_sanitised_text_has_few_characters_of_no_width_and_is_stable(text: str) -> None:
    shown = sanitise(text)
    assert not re.search("0{5}", "".join(str(cell_len(sign)) for sign in shown)), ascii(shown)
    assert sanitise(shown) == shown, "what is safe stays as it is"


@pytest.mark.parametrize("text", ["한국어", "\u1112\u1161\u11ab", "ไทย", "हिन्दी", "👍🏽", "עִבְרִית", "á"])
def test_living_scripts_stay(text: str) -> None:
    assert sanitise(text) == text


def test_line_separators_become_spaces() -> None:
    assert sanitise_lines("one\u2028two\u2029three\nfour") == "one two three\nfour"
