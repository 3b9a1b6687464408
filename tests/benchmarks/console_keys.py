"""Compares the console's live table with Textual's DataTable: the same rows, updates and keys.

Measured from the key event to the bytes for a terminal of 120×40 that only counts them. The console is complete; only
its mirror is fed directly instead of by a connection. On a busy machine the CPU time of a key is more reliable than its
wall time.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.drivers.headless_driver import HeadlessDriver
from textual.widgets import DataTable

from agentrl.client import Client
from agentrl.protocol.rows import RunRow, UnitRow, UnitState
from tests.benchmarks import console_first_screen
from tests.benchmarks.report import Outcome, median, p95
from tui.app import Console
from tui.connection import Connection
from tui.model import unit_table
from tui.model.mirror import Mirror
from tui.model.table import layout

SIZE = (120, 40)
ROWS = 10_000
UPDATES_PER_S = 10
ROWS_PER_UPDATE = 10
EVENTS_PER_S = 500
KEYS = 80
IDLE_S = 6.0


def measure() -> Outcome:
    outcome = asyncio.run(_measure())
    console_first_screen.measure(outcome)
    return outcome


async def _measure() -> Outcome:
    outcome = Outcome(
        f"the live table of the console, {ROWS:,} rows, {UPDATES_PER_S} updates/s of {ROWS_PER_UPDATE} rows"
    )
    ours = await _figures(_Fleet(), KEYS)
    theirs = await _figures(_Table(), KEYS // 4)
    outcome.at_most("key to paint, p95", ours.keys_p95_ms, "ms", 15)
    outcome.faster("key to paint, p95", ours.keys_p95_ms, "ms", "DataTable", theirs.keys_p95_ms, by=5)
    outcome.at_most("CPU, an idle terminal", ours.cpu_percent, "%", 5)
    outcome.faster("processor", ours.cpu_percent, "%", "DataTable", theirs.cpu_percent)
    outcome.at_most("bytes for the terminal", ours.bytes_per_s / 1000, "kB/s", 20)
    outcome.faster("bytes for the terminal", ours.bytes_per_s / 1000, "kB/s", "DataTable", theirs.bytes_per_s / 1000)
    storm = await _figures(_Fleet(rows_per_update=EVENTS_PER_S // UPDATES_PER_S, spread=True), 0)
    outcome.at_most(f"processor at {EVENTS_PER_S} events/s all over the rows", storm.cpu_percent, "%", 15)
    outcome.faster("processor time of a key, median", ours.key_cpu_ms, "ms", "DataTable", theirs.key_cpu_ms)
    return outcome


class Figures(msgspec.Struct):
    key_cpu_ms: float
    keys_p95_ms: float
    cpu_percent: float
    bytes_per_s: float


class _Counting(HeadlessDriver):
    """A terminal that counts its bytes."""

    written = 0
    last = 0.0

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        type(self).written += len(data.encode())
        type(self).last = time.perf_counter()

    def flush(self) -> None:
        """Does nothing: `write` has counted the bytes."""


class _SilentConnection:
    """A client whose coordinator never answers, so that only the console is measured."""

    async def __aenter__(self) -> Client:
        await asyncio.Event().wait()
        raise AssertionError

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""


class _Subject:
    app: App[Any]

    def update(self) -> None:
        """Applies one batch of changes."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Called when the app runs."""


class _Rows:
    """Ten thousand units whose measurements change."""

    def __init__(self) -> None:
        began = time.time()
        self.rows = [
            UnitRow(
                unit=f"sampler-{n}",
                group="sampler",
                role="sampler",
                state=UnitState.READY,
                incarnation=1,
                pid=1000 + n,
                host=f"node-{n % 40}",
                since_at=began - n,
                status=f"{n % 64} episodes",
                rss_bytes=n << 16,
            )
            for n in range(ROWS)
        ]
        self._chance = random.Random(7)

    def change(self, count: int, *, spread: bool) -> list[UnitRow]:
        """Some rows with new measurements; most of them near the top, where they are visible."""
        most = ROWS if spread else 2 * count
        changed = []
        for number in self._chance.sample(range(most), count):
            cpu = self._chance.uniform(0, 100)
            self.rows[number] = msgspec.structs.replace(
                self.rows[number], cpu_percent=cpu, rss_bytes=int(cpu * 1e7), status=f"{int(cpu)} episodes"
            )
            changed.append(self.rows[number])
        return changed


class _Fleet(_Subject):
    def __init__(self, *, rows_per_update: int = ROWS_PER_UPDATE, spread: bool = False) -> None:
        self._rows = _Rows()
        self._count, self._spread = rows_per_update, spread
        console = Console(lambda mirror: Connection(mirror, lambda: _SilentConnection()))  # type: ignore[arg-type, return-value]
        console.driver_class = _Counting
        self.app, self._console = console, console

    async def ready(self) -> None:
        mirror = self._console.mirror
        mirror.begin()
        mirror.put("run", RunRow("bench", "u", "running"))
        for row in self._rows.rows:
            mirror.put(f"unit/{row.unit}", row)
        mirror.whole(time.monotonic())
        self._console.navigation.open_tab("fleet")

    def update(self) -> None:
        mirror = self._console.mirror
        for row in self._rows.change(self._count, spread=self._spread):
            mirror.put(f"unit/{row.unit}", row)
        mirror.message_received(time.monotonic())


class _Table(_Subject):
    def __init__(self) -> None:
        rows = self._rows = _Rows()
        columns = self._columns = [c for c, _ in layout(unit_table.columns(Mirror()), SIZE[0] - 2) if c.title]

        class App_(App[None]):
            def compose(self) -> ComposeResult:
                table: DataTable[Text] = DataTable(cursor_type="row")
                for column in columns:
                    table.add_column(column.title, width=column.width, key=column.name)
                now = time.time()
                for row in rows.rows:
                    table.add_row(*(Text(c.show(row, now).text) for c in columns), key=row.unit)
                yield table

        self.app = App_()
        self.app.driver_class = _Counting

    def update(self) -> None:
        table, now = self.app.query_one(DataTable), time.time()
        for row in self._rows.change(ROWS_PER_UPDATE, spread=False):
            for column in self._columns:
                table.update_cell(row.unit, column.name, Text(column.show(row, now).text))


async def _figures(subject: _Subject, keys: int) -> Figures:
    app = subject.app
    running = asyncio.create_task(app.run_async(size=SIZE, mouse=False))
    updating: asyncio.Task[None] | None = None
    try:
        await _until(lambda: app.is_running and bool(app.size))
        await subject.ready()
        await _settled()
        updating = asyncio.create_task(_updates(subject))
        began, cpu, written = time.perf_counter(), time.process_time(), _Counting.written
        await asyncio.sleep(IDLE_S)
        passed = time.perf_counter() - began
        idle, bytes_ = (time.process_time() - cpu) / passed * 100, (_Counting.written - written) / passed
        taken = [await _key_to_paint(app) for _ in range(keys)] or [(0.0, 0.0)]
        return Figures(median([cpu for _, cpu in taken]) * 1000, p95([wall for wall, _ in taken]) * 1000, idle, bytes_)
    finally:
        if updating is not None:
            updating.cancel()
        app.exit()
        await running


async def _updates(subject: _Subject) -> None:
    for _ in itertools.count():
        subject.update()
        await asyncio.sleep(1 / UPDATES_PER_S)


async def _key_to_paint(app: App[Any]) -> tuple[float, float]:
    """Returns wall and CPU seconds."""
    await asyncio.sleep(0.037)
    before, began, cpu = _Counting.last, time.perf_counter(), time.process_time()
    app.post_message(events.Key("down", None))
    await _until(lambda: _Counting.last > max(before, began), every_s=0.0005)
    return _Counting.last - began, time.process_time() - cpu


async def _settled() -> None:
    """Waits until no painting is pending."""
    quiet = 0
    while quiet < 5:
        before = _Counting.written
        await asyncio.sleep(0.2)
        quiet = quiet + 1 if _Counting.written - before < 2000 else 0


async def _until(condition: Callable[[], bool], every_s: float = 0.01) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(every_s)
