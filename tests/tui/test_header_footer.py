"""Header, footer and notice line show their important parts uncut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import RefusedError
from agentrl.protocol.effects import Effect
from tests.cli.scripted import Scripted
from tests.tui.conftest import opened, populate
from tests.tui.test_screens import whole
from tui.action_registry import ACTIONS
from tui.model.actions import VIEWS, of_view
from tui.model.header_footer import MOST_LINES, footer, notice, tabs
from tui.model.mirror import Mirror
from tui.model.styled_text import Line, Span, width_of

UNDO = (Span("  u"), Span(" takes it back (9 s)"))


def text_of(lines: list[Line]) -> list[str]:
    return ["".join(part.text for part in line).strip() for line in lines]


@given(st.lists(st.text("ab界-", min_size=1, max_size=30), max_size=60), st.integers(40, 200), st.booleans())
def test_notice_keeps_its_width_its_lines_and_its_undo_hint(words: list[str], width: int, undo: bool) -> None:
    lines = notice((Span(" ".join(words)), *(UNDO if undo else ())), width)
    assert 1 <= len(lines) <= MOST_LINES
    assert all(width_of(line) <= width for line in lines)
    told = text_of(lines)
    assert told[-1].endswith("takes it back (9 s)") is undo
    if "…" not in "".join(told):
        said = "".join(told).removesuffix("u takes it back (9 s)") if undo else "".join(told)
        assert said.replace(" ", "") == "".join(words)


@pytest.mark.parametrize("heading", ["", "6 units", "100 of 2345, answered 75 s ago", "r" * 200])
@pytest.mark.parametrize("view", VIEWS)
def test_no_tab_name_is_cut_and_every_digit_is_shown(view: str, heading: str) -> None:
    shown = "".join(part.text for part in tabs(Mirror(), view, heading, "", 80))
    assert len(shown) == 80
    bar = shown.partition("▸")[0].split()
    assert [name[0] for name in bar] == [str(number) for number in range(1, 10)]
    known = {*VIEWS, "view", "tune", "recs", "train", ""}
    assert {name[1:] for name in bar} <= known
    assert view in {name[1:] for name in bar}
    assert heading[:20] in shown


@pytest.mark.parametrize("view", VIEWS)
def test_every_footer_has_quit_and_help(view: str) -> None:
    shown = "".join(part.text for part in footer(of_view(view, ACTIONS), 80))
    assert "q quit" in shown
    assert "? help" in shown


async def test_long_refusal_is_shown_completely(coordinator: Scripted) -> None:
    populate(coordinator)
    long = "The run is not reachable from other hosts, so a key would open nothing: set `coordinator.listen`, then up."

    def refuse(_: object) -> None:
        raise RefusedError(long)

    coordinator.answers["drain"] = refuse
    coordinator.effects["drain"] = Effect()
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("2", "down", "down", "d")
        await screen.shows("set `coordinator.listen`, then up.")
        whole(screen, 80, 24)
        assert "judge-0" in screen.text
        await screen.press("1")
        await screen.shows("Needs you")
