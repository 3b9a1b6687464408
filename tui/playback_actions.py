"""Implements the actions of playback: play and stop, jump, change the speed."""

from __future__ import annotations

from agentrl.formatting.row_text import row_kind
from tui.console_interface import Host
from tui.model import event_table
from tui.model.playback import Playback

JUMP_S = 10.0


class PlaybackActions:
    """The actions of playback; the console offers them only for a recording."""

    def __init__(self, console: Host, playback: Playback | None) -> None:
        self._console = console
        self._playback = playback

    def do_play(self) -> None:
        if self._playback is not None:
            self._playback.playing = not self._playback.playing
            self._console.paint_frame()

    def do_step(self, by: int, where: str) -> None:
        if self._playback is None:
            return
        found = self._playback.step(by, self._console.clock())
        row = self._console.mirror.get(found.key) if found else None
        if row is not None:
            self._console.say(f"{row_kind(row)} {event_table.subject(row)}: {event_table.what(row)}", fleeting=True)
        elif found is None:
            self._console.say(f"Nothing began {where} this.")
        self._console.update_view()

    def do_jump(self, seconds: float) -> None:
        if self._playback is not None:
            self._playback.seek(self._playback.position + seconds, self._console.clock())
            self._console.update_view()

    def do_hurry(self, by: int) -> None:
        if self._playback is not None:
            self._playback.faster(by)
            self._console.paint_frame()
