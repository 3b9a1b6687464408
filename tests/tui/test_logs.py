"""The log view: marks stay while lines arrive and while a filter is on, and long lines can be read."""

from __future__ import annotations

import pytest

from agentrl.protocol.messages import LogChunk
from tests.cli.scripted import Scripted
from tests.tui import fixed_console
from tests.tui.conftest import Screen, opened, populate
from tui.model.log_buffer import MOST_LINES, LogBuffer

LINES = [f"line {number} of the log" for number in range(200)]


def marked(screen: Screen) -> list[str]:
    """The visible marked lines without their marks."""
    return [line.strip().removeprefix("◆ ") for line in screen.lines if line.strip().startswith("◆ ")]


async def see(screen: Screen, *expected: str) -> None:
    await screen.shows(*(f"◆ {line}" for line in expected))
    assert marked(screen) == list(expected)


async def test_lines_can_be_marked_found_and_unmarked(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.answers["read_logs"] = fixed_console.log(LINES)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("6")
        await screen.shows(LINES[-1], "following")
        await screen.press("n")
        await screen.shows("m marks a line.")
        await screen.press("m")
        await see(screen, LINES[-1])
        # The first line is a remark about the log, so each line is one row below its number.
        await screen.press("home", "down", "m")
        await see(screen, LINES[0])
        await screen.press("pagedown", "pagedown", "m")
        (second,) = marked(screen)
        await screen.press("n")
        await see(screen, LINES[-1])
        await screen.press("n")
        await screen.shows("There is no mark after this.")
        await screen.press("N")
        await see(screen, second)
        await screen.press("N")
        await see(screen, LINES[0])
        await screen.press("N")
        await screen.shows("There is no mark before this.")

        await screen.press("slash", "9", "9", "enter")
        await screen.shows(LINES[99], LINES[199])
        assert marked(screen) == [LINES[0], second, LINES[-1]], "a filter hides no marked line"
        await screen.press("n", "m")
        await screen.press("slash", "9", "9", "x", "enter")
        await see(screen, LINES[0], LINES[-1])


async def test_mark_stays_on_its_line_while_lines_arrive(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.answers["read_logs"] = fixed_console.log(LINES[:100])
    async with opened(coordinator.state_dir) as screen:
        await screen.press("6")
        await screen.shows(LINES[99])
        await screen.press("m")
        await see(screen, LINES[99])
        coordinator.answers["read_logs"] = fixed_console.log(LINES)
        await screen.shows(LINES[-1], "following")
        assert marked(screen) == []
        await screen.press("N")
        await see(screen, LINES[99])
        await screen.shows("standing", LINES[100])


async def test_escape_and_a_quick_next_key_are_two_keys(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.answers["read_logs"] = fixed_console.log(LINES)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("6", "slash", "9", "9", "enter")
        await screen.shows("/99", LINES[199])
        await screen.press("alt+1")
        await screen.shows("Needs you")
        await screen.press("6")
        await screen.shows(LINES[198])
        await screen.press("slash", "9", "alt+2")
        await screen.shows("UNIT▲")
        await screen.press("6")
        await screen.shows(LINES[198])


async def test_long_log_line_can_be_read_to_its_end(coordinator: Scripted) -> None:
    populate(coordinator)
    words = [f"word{number}" for number in range(40)]
    lines = [*LINES[:50], " ".join(words), *LINES[50:60], "x" * 9000]
    coordinator.answers["read_logs"] = fixed_console.log(lines)
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("6")
        await screen.shows(LINES[59], "xxx…", "W wrap")
        assert "word39" not in screen.text
        await screen.press("W")
        await screen.shows("… and 4904 more characters")
        assert LINES[59] not in screen.text, "the last line alone is longer than the screen"
        # Move up through the rows of one line until the lines before it are visible.
        for _ in range(60):
            if "word0" in screen.text:
                break
            await screen.press("up")
        seen = " ".join(line.strip() for line in screen.lines)
        assert " ".join(words) in seen
        assert "…" not in "".join(screen.lines[2:])
        await screen.press("right")
        await screen.shows("W cuts them again")
        await screen.press("end")
        await screen.shows("more characters", "following")
        await screen.press("home", "pagedown", "pagedown", "pageup", "pageup")
        await screen.shows("── judge-0.7", LINES[0])
        await screen.press("end", "W")
        await screen.shows(LINES[59], "xxx…")


async def test_marks_and_matches_are_shown_in_wrapped_lines(coordinator: Scripted) -> None:
    populate(coordinator)
    long = f"{'some words ' * 12}needle and {'more words ' * 12}"
    coordinator.answers["read_logs"] = fixed_console.log([*LINES[:30], long, *LINES[30:60]])
    async with opened(coordinator.state_dir, (80, 24)) as screen:
        await screen.press("6", "W")
        await screen.shows(LINES[59])
        await screen.press("slash")
        await screen.type("needle")
        await screen.press("enter")
        await screen.shows("needle and more words")
        await screen.press("home", "down", "m", "escape")
        await screen.shows(LINES[59])
        await screen.press("N")
        await screen.shows("◆ some words", "needle and more words", LINES[29], LINES[30])


async def test_empty_log_has_nothing_to_mark(coordinator: Scripted) -> None:
    populate(coordinator)
    coordinator.answers["read_logs"] = lambda args: LogChunk("web-0", 0, 0, b"", 0)
    async with opened(coordinator.state_dir) as screen:
        await screen.press("6")
        screen.app.views["logs"].lines.book = LogBuffer()
        await screen.press("m")
        await screen.shows("Nothing is written yet.")


@pytest.mark.parametrize("merged", [False, True])
def test_marks_of_dropped_lines_are_removed_and_others_stay(merged: bool) -> None:
    book = LogBuffer(merged=merged)
    book.add("web-0", [f"line {number}" for number in range(MOST_LINES)])
    assert book.mark(0)
    assert book.mark(MOST_LINES - 1)
    book.add("web-0", [f"more {number}" for number in range(MOST_LINES // 2)])
    (place,) = book.marks()
    (entry,) = book.window(place, 1)
    assert (entry.text, book.is_marked(entry)) == (f"line {MOST_LINES - 1}", True)
    assert not book.mark(place)
    assert book.marks() == []
