"""When the coordinator falls silent, answers stay on the screen with their age, and no key ends the console."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.cli.scripted import Scripted
from tests.tui import all_screens, fixed_console
from tests.tui.all_screens import Stop
from tests.tui.conftest import Screen
from tests.waiting import aeventually

SILENT = "No coordinator answers: The coordinator is silent."


@pytest.fixture
async def screen(coordinator: Scripted) -> AsyncIterator[Screen]:
    fixed_console.narrate(coordinator, "normal")
    async with fixed_console.standing(coordinator, (120, 30), connected=False) as made:
        await aeventually(lambda: made.app.mirror.run is not None)
        yield made


async def _shows(screen: Screen, *texts: str) -> None:
    def there() -> bool:
        screen.app._paint_new_data()
        return all(text in screen.text for text in texts)

    await aeventually(there, what=f"{texts} on the screen")


@pytest.mark.parametrize("list", ["records", "training", "tasks", "checkpoints", "keys", "tool errors", "calls"])
async def test_answered_rows_stay_with_their_age(screen: Screen, list: str) -> None:
    stop = next(each for each in (*all_screens.VIEWS, *all_screens.PAGES) if each.name == list)
    await all_screens.walk_to(screen, Stop(list, stop.keys), silence=True)
    await _shows(screen, ", answered 75 s ago", "The coordinator is silent. agentrl up starts it again.")
    assert "not answered" not in screen.text
    assert len(screen.app.view.table.model)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("key", "still_there"), [("c", "line 0"), ("b", "line 0"), ("r", "line 0"), ("a", "")])
async def test_unanswered_query_of_a_record_is_reported(screen: Screen, key: str, still_there: str) -> None:
    """The lists are tokens, branches, the record again, and its attempts."""
    await all_screens.walk_to(screen, Stop("record", ("7", "end", "enter")), silence=True)
    await all_screens.press(screen, key)
    await _shows(screen, SILENT, still_there)
    await all_screens.press(screen, "escape")
    await _shows(screen, "no connection since")


async def test_unanswered_attempts_are_not_queried_again_and_again(screen: Screen) -> None:
    await all_screens.walk_to(screen, Stop("attempts", ("7", "end", "a")), silence=True)
    page = screen.app.view
    page._stories.clear()  # type: ignore[attr-defined]
    page._asked.clear()  # type: ignore[attr-defined]
    await _shows(screen, SILENT)
    assert " asking" not in screen.text


async def test_wait_chain_is_unknown_before_the_first_answer(screen: Screen) -> None:
    await all_screens.press(screen, "w")
    await _shows(screen, "Not known: there was no answer on who waits for whom.")
    assert "nobody waits" not in screen.text
    await all_screens.walk_to(screen, Stop("waits", ("1", "w")), silence=True)
    await _shows(screen, "trainer-0 waits for a batch", "who waits for whom, answered 75 s ago")
