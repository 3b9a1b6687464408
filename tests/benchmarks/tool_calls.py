"""Measures tool calls per second through a toolbox, and a thousand sessions at once, next to a client of the MCP SDK.

The whole way is that of an episode: the client in a sampler, the toolbox in a process of its own, the server. The peer
is a client of the SDK in the process of its callers, with the same transport and server. A third measurement calls the
toolbox in the process of its callers, which shows the cost of its bookkeeping alone.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

from tests.benchmarks.report import Outcome, median
from tests.benchmarks.tool_calls_process import CALLERS, SESSIONS, Figures, rss

ROUNDS = 3
LEAST = 0.9
PROGRAM = (sys.executable, "-m", "tests.benchmarks.tool_calls_process")


def measure() -> Outcome:
    outcome = Outcome(f"calls of {CALLERS} sessions on one stateless server, and {SESSIONS} sessions at once")
    with serving("http-server") as (server, _):
        for transport, target in (("stdio", ""), ("HTTP", server)):
            _calls(outcome, transport, target)
        _sessions(outcome, server)
    return outcome


def _calls(outcome: Outcome, transport: str, server: str) -> None:
    """Measure all in turns, because the machine has other work."""
    found: dict[str, list[Figures]] = {"whole-way": [], "toolbox-alone": [], "sdk": []}
    with serving("toolbox", server) as (toolbox, _):
        for _ in range(ROUNDS):
            for what, figures in found.items():
                figures.append(figures_of(what, "calls", toolbox if what == "whole-way" else server))
    rates = {what: median([each["calls_per_s"] for each in figures]) for what, figures in found.items()}
    spent = {what: median([each["cpu_ms"] for each in figures]) for what, figures in found.items()}
    peer = f"SDK over {transport}"
    for what, name, least in (("whole-way", "the whole way", LEAST), ("toolbox-alone", "the toolbox alone", 0.0)):
        outcome.share(f"calls over {transport}, {name}", rates[what], "/s", peer, rates["sdk"], least)
    outcome.faster(
        f"CPU of the caller per call over {transport}, the toolbox alone",
        spent["toolbox-alone"],
        "ms",
        peer,
        spent["sdk"],
    )


def _sessions(outcome: Outcome, server: str) -> None:
    alone = figures_of("sdk", "sessions", server)
    with serving("toolbox", server) as (toolbox, process):
        before = rss(process.pid)
        ours = figures_of("whole-way", "sessions", toolbox)
        of_toolbox = (rss(process.pid) - before) / 1024 / SESSIONS
    outcome.within(f"{SESSIONS} sessions with a call each", ours["took_s"], "s", "SDK over HTTP", alone["took_s"], 1)
    outcome.at_most("of them failed", ours["failed"], "", 0)
    outcome.plain("of them failed with the SDK", alone["failed"], "")
    memory = ours["kib"] + of_toolbox
    outcome.faster("memory of a session, caller and toolbox", memory, "KiB", "SDK over HTTP", alone["kib"])


def figures_of(what: str, act: str, target: str) -> Figures:
    ended = subprocess.run([*PROGRAM, what, act, target], check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    figures: Figures = json.loads(ended.stdout)
    return figures


@contextlib.contextmanager
def serving(*command: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs a serving process during the body, and yields its URL. The process ends when its stdin is closed at the
    exit."""
    with subprocess.Popen([*PROGRAM, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
