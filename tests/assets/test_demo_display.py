"""The display of the training demo: it fits the terminal, shows the state, and trusts no text of units."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from agentrl.protocol.rows import UnitRow, UnitState
from assets.demo_display import Screen
from assets.train_demo import Result
from assets.training_state import Figures

NOW = Figures(
    version=12,
    rewards=tuple(number / 40 for number in range(40)),
    committed=11,
    staleness=0.53,
    tokens=10,
    tool_calls=300,
    tool_errors=9,
    held_out={1: 0.0, 11: 0.94},
)


def trainer(status: str) -> UnitRow:
    return UnitRow(unit="trainer-0", group="trainer", role="trainer", state=UnitState.READY, status=status)


def drawn(status: str, now: Figures, width: int) -> list[str]:
    page = io.StringIO()
    console = Console(file=page, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(Screen(console, 30).picture(trainer(status), now))
    return page.getvalue().rstrip().splitlines()


@pytest.mark.parametrize("width", [80, 120])
def test_display_fits_the_terminal(width: int) -> None:
    lines = drawn("trains step 12, " + "many tokens " * 30, NOW, width)
    assert len(lines) == 8
    assert all(len(line) <= width for line in lines)


def test_display_shows_the_warm_up_and_then_the_steps() -> None:
    assert "warm-up 16 of 150" in drawn("warm-up: step 16 of 150, loss 1.432", Figures(), 100)[0]
    assert "step 11 of 30" in drawn("warm-up: step 16 of 150, loss 1.432", NOW, 100)[0]
    assert any("v1 0.00, v11 0.94" in line for line in drawn("trains", NOW, 100))


def test_text_of_units_is_neither_markup_nor_control_codes() -> None:
    page = "\n".join(drawn("[/bold] \x1b[2J\x1b]0;gone\x07 here", NOW, 100))
    assert "[/bold]" in page
    assert "\x1b" not in page
    assert "here" in page


def test_without_a_terminal_lines_are_printed_at_intervals() -> None:
    page = io.StringIO()
    console = Console(file=page, width=40)
    with Screen(console, 30).shown() as show:
        for _ in range(3):
            show(trainer("trains\x1b[2J"), NOW)
    (line,) = page.getvalue().splitlines()
    assert "step 11 of 30; version 12; reward 0.93; held out v11 0.94;" in line
    assert line.endswith("trainer trains")


def test_line_without_a_terminal_has_a_fixed_length() -> None:
    page = io.StringIO()
    long = dataclasses.replace(NOW, rewards=(0.5,) * 500, held_out={version: 0.5 for version in range(100)})
    with Screen(Console(file=page, width=40), 500).shown() as show:
        show(trainer("trains " * 50), long)
    (line,) = page.getvalue().splitlines()
    assert len(line) == 120
    assert line.endswith("…")


@pytest.mark.parametrize(
    ("before", "after", "learned"), [(0.0, 0.8, True), (0.65, 0.9, False), (0.0, 0.79, False), (0.55, 0.86, True)]
)
def test_learned_means_a_high_reward_and_a_gain(before: float, after: float, learned: bool) -> None:
    assert Result(before=before, after=after).learned is learned
