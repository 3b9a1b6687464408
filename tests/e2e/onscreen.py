"""Checks that a person finds a fault in the console with a few keys, on a small and on a large terminal.

Invariants:
- the answer appears after at most `MOST_KEYS` keys from the first screen;
- data of the feed is looked up in the run's own recording, and only answers to queries in the live run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from agentrl.client import Client
from agentrl.errors import ConfigError
from agentrl.recording.disk_writer import DIRECTORY
from agentrl.recording.reader import Recording
from tests.e2e.running import Run
from tests.tui.all_screens import comes_to_be_sound
from tests.tui.conftest import Screen
from tests.waiting import aeventually
from tui.app import Console
from tui.connection import Connection
from tui.model.mirror import Mirror
from tui.playback_connection import PlaybackConnection

SIZES = ((80, 24), (200, 60))
MOST_KEYS = 4


def recorded(run: Run, keys: Sequence[str], *texts: str, once: str = "", after: float = 0.0) -> None:
    """The run's recording, opened at its end, shows these texts after these keys.

    The last key is pressed for the row that `once` names. The recording must contain what happened before `after`,
    because a key may open the newest of several things.
    """

    def newest() -> Recording | None:
        try:
            found = Recording.open(run.state_dir / DIRECTORY)
        except ConfigError:
            return None
        return found if found.end >= after else None

    async def look() -> None:
        first = await aeventually(newest, what="a recording")

        def link(mirror: Mirror) -> PlaybackConnection:
            return PlaybackConnection(mirror, first, name=run.name, at=first.end)

        app = Console(link)

        def further() -> None:
            """Frames that were recorded during the wait count too."""
            found = newest()
            if app.playback is not None and found is not None:
                app.playback.source = found
                app.playback.seek(found.end, time.monotonic())

        await _seen(app, keys, texts, further, once)

    asyncio.run(look())


def live(run: Run, keys: Sequence[str], *texts: str, once: str = "") -> None:
    """A console of the live run shows these texts after these keys; the last key is pressed when `once` is shown, and
    Enter for the row at the top.
    """

    def connect() -> Client:
        return Client.connect(run.name, state_dir=run.state_dir)

    asyncio.run(_seen(Console(lambda mirror: Connection(mirror, connect)), keys, texts, lambda: None, once))


async def _seen(
    app: Console, keys: Sequence[str], texts: Sequence[str], further: Callable[[], None], once: str
) -> None:
    assert len(keys) <= MOST_KEYS, "the answer must take fewer keys"
    async with app.run_test(size=SIZES[0]) as pilot:
        screen = Screen(app, pilot)
        await aeventually(lambda: app.mirror.link.connected and app.mirror.run is not None, what="rows")

        async def shows(*texts: str) -> None:
            def there() -> bool:
                further()
                app._paint_new_data()
                missing = [text for text in texts if text not in screen.text]
                assert not missing, f"{missing} not in:\n{screen.text}"
                return True

            await aeventually(there)

        for key in keys:
            await shows(*([once] if once and key is keys[-1] else []))
            if once and key is keys[-1] == "enter":
                await screen.press("home")  # the newest row
            await screen.press(key)
        for size in SIZES:
            await screen.resize(*size)
            await shows(*texts)
            await comes_to_be_sound(screen, *size)
