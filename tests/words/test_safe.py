"""Text of a run made fit for a terminal: nothing hides in it, and nothing grows out of its line."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.words.safe import sanitise

MARKS = st.characters(categories=("Mn", "Me"))
FILLERS = "\u115f\u1160\u3164\uffa0\u17b4"


@given(st.text(st.one_of(MARKS, MARKS, MARKS, st.characters(categories=("Ll", "Lo", "So"))), max_size=40))
def test_no_sign_carries_a_heap_of_marks_in_any_script(text: str) -> None:
    kinds = "".join("m" if unicodedata.category(sign) in ("Mn", "Me") else "." for sign in sanitise(text))
    assert not re.search("m{5}", kinds)


@pytest.mark.parametrize(
    ("base", "mark"), [("ب", "\u064b"), ("ก", "\u0e49"), ("ש", "\u05b0"), ("क", "\u0951"), ("e", "\u0301")]
)
def test_a_few_marks_are_a_language_and_stay(base: str, mark: str) -> None:
    assert sanitise(base + mark * 2) == base + mark * 2
    assert sanitise(base + mark * 3000) == base + mark * 4


@pytest.mark.parametrize("filler", FILLERS)
def test_a_letter_that_looks_like_nothing_is_seen(filler: str) -> None:
    assert sanitise(f"admin{filler}") != "admin"
    assert filler not in sanitise(f"admin{filler}")
    assert sanitise(f"admin{filler}").endswith("\ufffd")


def test_drawings_and_emoji_stay() -> None:
    text = "━━━━━━━━ █▇▆▅▄▃▂▁ →→→→→→ 😀😀😀😀😀😀"
    assert sanitise(text) == text
