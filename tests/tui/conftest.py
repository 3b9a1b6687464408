"""The console with the real sockets of a scripted run, on a terminal of any size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from agentrl.client import Client
from agentrl.protocol import rows
from agentrl.protocol.control_commands import WhyReport
from agentrl.protocol.messages import ExitStatus, HostFacts, LogChunk, Wait
from tests.cli.scripted import Scripted
from tests.waiting import aeventually
from tui.app import Console
from tui.connection import Connection
from tui.console_interface import Settings

HOSTILE = "\x1b]0;owned\x07\x1b[31m[/INST] [red]\u202eevil 界界 \r\n" + "x" * 5000
SIZES = ((80, 24), (120, 40), (300, 80))
QUEUES = 8
"""More message queues than a key passes: the app, a screen, a field, its messages to screen and app, and a dialog that
closes.
"""


class Screen:
    """The screen and keyboard of one console."""

    def __init__(self, app: Console, pilot: Pilot[int]) -> None:
        self.app = app
        self._pilot = pilot

    @property
    def lines(self) -> list[str]:
        return [strip.text for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, each after the effect of the one before."""
        for key in keys:
            await self._fresh()
            await self._pilot.press(key)
            await self._settled()

    async def type(self, text: str) -> None:
        await self._pilot.press(*text)
        await self._settled()

    async def _fresh(self) -> None:
        """Wait until the view is fresh or the connection is lost. Commands are disabled on a stale view, and on a busy
        machine the view is stale until the next message arrives.
        """
        app = self.app
        if app.playback is None:
            await aeventually(
                lambda: not app.mirror.link.connected or app.mirror.fresh(app.clock()), what="a sign of life"
            )

    async def _settled(self) -> None:
        """Wait until the effect of a key has passed all queues. The pilot waits only until the process is nearly idle,
        which it also is when it gets no processor time.
        """
        for _ in range(QUEUES):
            await self._pilot._wait_for_screen()

    async def command(self, text: str) -> None:
        """Type a line into the palette."""
        await self.press("colon")
        await self.type(text)
        await self.press("enter")

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)
        await aeventually(lambda: len(self.lines) == height and self.app.size == (width, height))

    async def round(self) -> None:
        """Process pending messages and paint."""
        await self._pilot.pause()
        self.app._paint_new_data()
        await self._pilot.pause()

    async def shows(self, *texts: str) -> None:
        def there() -> bool:
            seen = self.text
            missing = [text for text in texts if text not in seen]
            assert not missing, f"{missing} not in:\n{seen}"
            return True

        await aeventually(there)


@pytest.fixture(autouse=True)
def _keys_without_idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each key the pilot waits until the process is idle, which takes a tenth of a second and proves nothing:
    `Screen._settled` waits for the effect.
    """

    async def at_once(min_sleep: float = 0.0) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr("textual.app.wait_for_idle", at_once)


@asynccontextmanager
async def opened(
    state_dir: Path,
    size: tuple[int, int] = (100, 30),
    settings: Settings | None = None,
    *,
    connected: bool = True,
    faults: bool = False,
) -> AsyncIterator[Screen]:
    def connect() -> Client:
        return Client.connect(state_dir=state_dir, timeout_s=5.0)

    app = Console(lambda mirror: Connection(mirror, connect), settings)
    async with app.run_test(size=size) as pilot:
        screen = Screen(app, pilot)
        if connected:
            await aeventually(lambda: app.mirror.link.connected, what="a connection")
            app._paint_new_data()
            await pilot.pause()
        yield screen
        assert faults or not app.faults


@pytest.fixture
def coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scripted]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    (tmp_path / "r").mkdir(mode=0o700)
    made = Scripted(tmp_path / "home")
    made.answers["why"] = lambda _: WhyReport()
    made.answers["read_logs"] = lambda args: LogChunk("web-0", 7, 0, b"", 0)
    with made:
        yield made


def populate(
    coordinator: Scripted, *, units: int = 3, sentence: str = "serving", long: str = "", now: float | None = None
) -> None:
    """Fill the script with a run that has some of everything."""
    now = time.time() if now is None else now
    put = coordinator.rows.__setitem__
    put("group/web", rows.GroupRow("web", "sidecar", desired=units, ready=units))
    for n in range(units):
        put(
            f"unit/web-{n}",
            rows.UnitRow(
                f"web-{n}", "web", "sidecar", rows.UnitState.READY, since_at=now - 300, incarnation=7,
                host="far", pid=400 + n,
                status=f"{sentence}{long}", cpu_percent=12.0, rss_bytes=50 << 20, rss_over_time=(1, 2, 3), progress=4,
                progress_at=now - 3, waits=(Wait(f"judge{long[:50]}"),),
            ),
        )  # fmt: skip
    put("group/judge", rows.GroupRow("judge", "sidecar", desired=1, other={"fatal": 1}))
    put(
        "unit/judge-0",
        rows.UnitRow(
            "judge-0", "judge", "sidecar", rows.UnitState.FATAL, reason=f"died 6 times{long}", since_at=now - 90,
            incarnation=6,
            restarts=6, deaths_in_window=6, last_exit=ExitStatus(code=1),
        ),
    )  # fmt: skip
    facts = HostFacts(cpus=8, memory_bytes=32 << 30)
    put(
        "host/far",
        rows.HostRow("far", "up", facts=facts, units=units, memory_used_bytes=4 << 30, disk_free_bytes=1 << 40),
    )
    for n, level in enumerate((rows.Severity.PAGE, rows.Severity.WARNING, rows.Severity.INFO, rows.Severity.INFO)):
        subject = f"judge-{n}"
        put(
            f"alert/bad:{subject}",
            rows.AlertRow(
                f"bad:{subject}", "bad", subject, level, rows.AlertState.FIRING, f"{subject} is fatal.{long}", now - 60,
                evidence=(f"exit 1{long}",), suggest="agentrl restart judge-0",
            ),
        )  # fmt: skip
    put(
        "incident/1",
        rows.IncidentRow(
            "1", "judge-0", 6, now - 90, f"judge-0.6 died{long}", ExitStatus(code=1), "far", tail=("last words", long)
        ),
    )
    done = rows.OperationState.SUCCEEDED
    put(
        "op/a1b2c3d4e5",
        rows.OperationRow("a1b2c3d4e5", "scale", f"scale web to 3{long}", "ann@far", done, now - 40, now - 39),
    )
    put(
        "knob/pool.work_s",
        rows.KnobRow(
            "pool.work_s", "float", 1.0, f"How long a piece takes.{long}", "s", 0.0, 9.0, owner="web",
            value=2.0, revision=4, in_force=1.0, changed_at=now - 30, changed_by="ann@far", before=1.0,
        ),
    )  # fmt: skip
    put(
        "knob/trainer.rate",
        rows.KnobRow("trainer.rate", "float", 0.1, value=0.1, revision=1, scientific=True, boundary="next version"),
    )
    coordinator.answers["knob_history"] = lambda _: [rows.AuditRow(1, now, "ann@far", "tune", f"1 -> 2{long}")]
