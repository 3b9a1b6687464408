"""A real console with a fixed clock and the rows of a script in its mirror.

Invariants:
- every row has passed the wire format and the mirror;
- queries go over the real sockets of a scripted coordinator;
- the screen does not depend on the time, the machine or the speed of a test.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrl.client import Client
from agentrl.config import paths
from agentrl.protocol import rows, wire
from agentrl.protocol.control_commands import WaitChain, WaitLink, WhyReport
from agentrl.protocol.data_commands import AccountReport, Page
from agentrl.protocol.messages import LogChunk
from agentrl.protocol.other_model_commands import OtherModelsReport
from agentrl.telemetry import learning_metrics
from tests.cli.scripted import Scripted
from tests.tui.conftest import Screen, populate
from tests.tui.steward_answers import answers
from tui.app import CRASH_FILE, Console
from tui.connection import Connection
from tui.console_interface import Settings
from tui.model.mirror import Mirror

NOW = 1_900_000_000.0
"""The wall clock and the monotonic clock of every test."""
SILENT_S = 75.0
LONG = " and it goes on 界界 like this for longer than any screen is wide," * 9
"""Long text with some characters of two cells."""
TIMES = ("normal", "empty", "disconnected", "overflowing")


@dataclass
class Clock:
    """Monotonic seconds, for the age of the data."""

    at: float = NOW


class Still(Connection):
    """Reads the rows of a script once. Later nothing changes, and the test decides whether it is connected."""

    def __init__(self, mirror: Mirror, script: Scripted, clock: Clock, *, connected: bool) -> None:
        super().__init__(mirror, lambda: Client.connect(state_dir=script.state_dir, timeout_s=30.0))
        self._script, self._clock, self._connected = script, clock, connected
        self._answering: Client | None = None

    def now(self) -> float:
        return NOW

    async def run(self) -> None:
        mirror = self.mirror
        mirror.name = self._script.state_dir.name
        mirror.begin()
        for key, row in self._script.rows.items():
            mirror.put(key, wire.decode_row(wire.raw(row)))
        mirror.whole(NOW if self._connected else NOW - SILENT_S)
        if not self._connected:
            self.lose()
        async with self._connect() as client:
            self._answering = client
            if self._connected:
                self.hear()
            await asyncio.Event().wait()

    @property
    def hears(self) -> bool:
        return self._client is not None

    def can_hear(self) -> bool:
        """Whether queries can be answered after `hear`."""
        return self._answering is not None

    def asked(self) -> bool:
        """A query waits for its answer."""
        return self._answering is not None and bool(self._answering._session._pending)

    def hear(self) -> None:
        """Answer queries until the connection is lost."""
        self._clock.at = NOW if self._connected else NOW - SILENT_S
        self.mirror.whole(self._clock.at)
        self._client = self._answering
        self._settled.set()

    def lose(self) -> None:
        """Lose the connection; the last message is some time ago."""
        self._clock.at, self._client = NOW, None
        self.mirror.lost(NOW - SILENT_S, "The coordinator is silent.", "agentrl up starts it again.")
        self._settled.set()


def let_pass(app: Console, seconds: float) -> None:
    """Advance the clock, for the ages on the screen."""
    assert isinstance(app.connection, Still)
    app.connection._clock.at += seconds


@contextmanager
def one_zone() -> Iterator[None]:
    """Use UTC for times of day."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def a_home(directory: Path) -> Path:
    """A home directory with a run of the day before that is down."""
    state = directory / "yesterday"
    state.mkdir(parents=True)
    shown = {
        "name": "yesterday",
        "uuid": str(uuid.UUID(int=7)),
        "run_dir": "/runs/yesterday",
        "created_at": NOW - 86400,
    }
    (state / paths.RUN_FILE).write_text(json.dumps(shown))
    return directory


@asynccontextmanager
async def standing(
    script: Scripted, size: tuple[int, int], *, connected: bool = True, settings: Settings | None = None
) -> AsyncIterator[Screen]:
    """A console on its first screen, with the rows of the script."""

    clock = Clock()

    def link(mirror: Mirror) -> Connection:
        return Still(mirror, script, clock, connected=connected)

    app = Console(link, settings, clock=lambda: clock.at)
    with one_zone():
        async with app.run_test(size=size) as pilot:
            yield Screen(app, pilot)
            assert not app.faults, (paths.home() / CRASH_FILE).read_text()


def narrate(script: Scripted, times: str) -> None:
    """Fill the script with a run in these conditions."""
    script.rows["run"] = rows.RunRow("demo", "u" * 8, "running", started_at=NOW - 5400)
    if times == "empty":
        _nothing_yet(script)
        return
    overflows = times == "overflowing"
    long = LONG if overflows else ""
    populate(script, units=400 if overflows else 3, long=long, now=NOW)
    answers(script, long)
    script.answers["read_logs"] = log([f"2030-03-17 17:4{n % 7}:00 INFO line {n} of the log{long}" for n in range(90)])
    link = WaitLink("trainer-0", "batch", f"a batch{long}", 312.0, True)
    script.answers["why"] = lambda _: WhyReport(
        (WaitChain((link,), "web-1", f"it is at work{long}", f"trainer-0 waits for a batch: web-1 is at work{long}"),)
    )
    _train(script, long)
    if overflows:
        _overflow(script)


def _nothing_yet(script: Scripted) -> None:
    for name in (
        "list_records",
        "list_steps",
        "list_tasks",
        "list_checkpoints",
        "list_calls",
        "list_replays",
        "list_reviews",
    ):
        script.answers[name] = lambda _: Page(())
    for name in ("tool_errors", "list_keys", "list_evaluations"):
        script.answers[name] = lambda _: []
    script.answers["accounting"] = lambda _: AccountReport({}, {}, {}, {}, 0, {}, (), True)
    script.answers["other_models"] = lambda _: OtherModelsReport()


def log(lines: list[str]) -> Callable[[Any], LogChunk]:
    data = "".join(f"{line}\n" for line in lines).encode()

    def answer(args: Any) -> LogChunk:
        at = max(0, len(data) + args.offset) if args.offset < 0 else args.offset
        return LogChunk("web-0", 7, at, data[at:], len(data))

    return answer


def _train(script: Scripted, long: str) -> None:
    """The rows of a run that trains."""
    metrics = {
        learning_metrics.EVALUATION.name: 0.41,
        learning_metrics.REWARD.name: 0.62,
        "step": 120.0,
        learning_metrics.VALID.name: 0.97,
        learning_metrics.INFRASTRUCTURE.name: 0.03,
        learning_metrics.TRUNCATION.name: 0.02,
        learning_metrics.ZERO_VARIANCE_LATELY.name: 0.81,
        learning_metrics.ESS.name: 0.93,
        learning_metrics.ENTROPY_KEPT.name: 0.88,
        learning_metrics.GRADIENT_OVER_MEDIAN.name: 1.2,
    }
    script.rows["unit/trainer-0"] = rows.UnitRow(
        "trainer-0", "trainer", "trainer", rows.UnitState.READY, since_at=NOW - 4000, incarnation=1, host="far", pid=99,
        phase="step", phase_since_at=NOW - 12, phase_deadline_at=NOW + 888, status=f"step 120, 64 records{long}",
        cpu_percent=190.0, rss_bytes=3 << 30, rss_over_time=(1, 3, 5), progress=120, progress_at=NOW - 12, weights=119,
        metrics=metrics,
    )  # fmt: skip
    script.rows["group/trainer"] = rows.GroupRow("trainer", "trainer", desired=1, ready=1)
    tool = rows.ToolLoad("shop.lookup", 6.1, 3.2, 0.04, 0.8, NOW - 600)
    script.rows["pulse"] = rows.BottleneckRow(
        f"trainer waits 41 % for batches{long}", "tools", NOW - 600, busy={"engine": 0.62, "toolbox": 0.94},
        units={"web-0": 0.4}, in_tools=0.7, in_model=0.2, tools=(tool,),
    )  # fmt: skip


def _overflow(script: Scripted) -> None:
    """Hundreds of rows of every kind."""
    failed = rows.OperationState.FAILED
    for n in range(300):
        at = NOW - 3600 + 7 * n
        script.rows[f"knob/pool.k{n:03}"] = rows.KnobRow(
            f"pool.k{n:03}", "float", 1.0, value=n * 1e9, revision=4, help=LONG
        )
        script.rows[f"op/{n:010}"] = rows.OperationRow(
            f"{n:010}", "restart", f"restart web-{n}{LONG}", "ann@far", failed, at, at + 5, reason=LONG
        )
        script.rows[f"incident/x{n}"] = rows.IncidentRow(f"x{n}", f"web-{n}", 6, at, LONG, tail=(LONG,) * 40)
        script.rows[f"alert/bad:web-{n}"] = rows.AlertRow(
            f"bad:web-{n}",
            "bad",
            f"web-{n}",
            rows.Severity.WARNING,
            rows.AlertState.FIRING,
            LONG,
            at,
            (LONG,) * 40,
            LONG,
        )
    for n in range(40):
        script.rows[f"host/node-{n:02}"] = rows.HostRow(f"node-{n:02}", "up", units=10, disk_free_bytes=1 << 40)
        script.rows[f"group/g{n:02}"] = rows.GroupRow(f"g{n:02}", "sidecar", desired=9, ready=9)
