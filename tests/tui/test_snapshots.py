"""Snapshots of every screen at three sizes: with a normal run, without rows, without a coordinator, with too many rows.

After a deliberate change, `pytest tests/tui/test_snapshots.py --renew` replaces them.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.cli.scripted import Scripted
from tests.tui import all_screens, fixed_console, snapshot_files
from tests.tui.all_screens import PAGES, VIEWS, Stop
from tests.tui.conftest import Screen
from tests.tui.snapshot_files import Album, Picture, Size
from tests.waiting import PATIENCE_S, aeventually

SIZES = ((80, 24), (120, 40), (200, 60))
MOST_DIFFS = 4


class Walk:
    """One walk over all screens in the same conditions."""

    def __init__(self, times: str, *, renew: bool) -> None:
        self.times = times
        self._renew = renew
        self._drawn: dict[str, dict[Size, Picture]] = {}
        self.changed: list[str] = []

    async def see(self, screen: Screen, stop: Stop, size: Size) -> None:
        album = Album(stop.name)

        def changes() -> str:
            return album.changes(self.times, size, snapshot_files.picture(screen))

        def same() -> bool:
            draw(screen)
            return not changes()

        if self._renew:
            await _rest(screen)
        else:
            try:
                # The first painting may be late; after a real difference the waits are short.
                await aeventually(same, within_s=2.0 if self.changed else PATIENCE_S)
            except AssertionError:
                self.changed.append(changes())
        self._drawn.setdefault(stop.name, {})[size] = snapshot_files.picture(screen)
        all_screens.sound(screen, *size)

    def end(self) -> None:
        for name, drawn in self._drawn.items():
            album = Album(name)
            if self._renew:
                album.put(drawn, self.times)
            elif gone := album.of(self.times) - drawn.keys():
                sizes = ", ".join(f"{width}x{height}" for width, height in sorted(gone))
                self.changed.append(f"{album.path.name} has pictures of {self.times} that no test draws: {sizes}.")


def draw(screen: Screen) -> None:
    """Paint the console. Textual draws the dimmed view behind a dialog only when all of it is drawn."""
    screen.app._paint_new_data()
    if len(screen.app.screen_stack) > 1:
        screen.app.screen.refresh()


async def _rest(screen: Screen) -> None:
    """Wait until the screen does not change."""
    seen: list[Picture] = []

    def stands() -> bool:
        draw(screen)
        seen.append(snapshot_files.picture(screen))
        return len(seen) > 4 and len(set(seen[-5:])) == 1

    await aeventually(stands, every_s=0.05)


@pytest.mark.parametrize("times", fixed_console.TIMES)
async def test_every_screen_equals_its_snapshot(
    coordinator: Scripted, times: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_HOME", str(fixed_console.a_home(tmp_path / "runs")))
    fixed_console.narrate(coordinator, times)
    walk = Walk(times, renew=bool(request.config.getoption("--renew")))
    stops = [stop for stop in (*VIEWS, *PAGES) if times in stop.times]
    async with fixed_console.standing(coordinator, SIZES[0], connected=times != "disconnected") as screen:
        await aeventually(lambda: screen.app.mirror.run is not None)
        # Answers from before the loss stay, so screens that open after the loss come first.
        for before, size in itertools.product((False, True), SIZES):
            await screen.resize(*size)
            for stop in (each for each in stops if each.before_the_silence == before):
                await all_screens.walk_to(screen, stop, silence=times == "disconnected")
                await walk.see(screen, stop, size)
    walk.end()
    shown = "\n\n".join(walk.changed[:MOST_DIFFS])
    more = f"\n\nand {len(walk.changed) - MOST_DIFFS} more." if len(walk.changed) > MOST_DIFFS else ""
    assert not walk.changed, f"{len(walk.changed)} pictures have changed.\n\n{shown}{more}\n\n{snapshot_files.HOW}"


def test_every_snapshot_belongs_to_a_screen() -> None:
    drawn = {Album(stop.name).path.name for stop in (*VIEWS, *PAGES)}
    assert {path.name for path in snapshot_files.HERE.iterdir()} == drawn, snapshot_files.HOW
