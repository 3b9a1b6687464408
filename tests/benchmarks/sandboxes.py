"""Measures the start of tool servers in their sandbox, compared with a plain process."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from agentrl.config.data_plane import ToolServer
from agentrl.config.tool_sandbox import Sandbox
from agentrl.sandboxes import sandbox_cgroups
from agentrl.toolbox.api_messages import CallTool, OpenSession
from agentrl.toolbox.connection_starts import connector
from agentrl.toolbox.toolbox import Toolbox
from tests.benchmarks.report import Outcome, median
from tests.waiting import aeventually

REPEATS = 15
MOST, MOST_MORE_MS, MOST_WARM_MS = 1.5, 30.0, 20.0
LIGHT = Path(__file__).parents[1] / "toolbox" / "faulty_servers.py"
SERVERS = {"a light server": (sys.executable, str(LIGHT)), "the shop": (sys.executable, "-m", "assets.shop_server")}


def measure() -> Outcome:
    # Only here does this process count as a unit; in the other benchmarks it does not.
    with patch.dict(os.environ, AGENTRL_RUN=f"{os.getpid():08x}", AGENTRL_INCARNATION="toolbox-0.1"):
        return _measure()


def _measure() -> Outcome:
    outcome = Outcome(f"from the start of a tool server to its list of tools (medians of {REPEATS}, in turn)")
    if not sandbox_cgroups.usable_places():
        outcome.notes.append("This host allows no cgroups of sandboxes.")
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for name, command in SERVERS.items():
            plain, sandboxed = asyncio.run(_starts(command, Path(folder)))
            limit = MOST * plain + MOST_MORE_MS
            outcome.plain(f"{name}, plain", plain, "ms")
            outcome.at_most(f"{name}, sandboxed", sandboxed, "ms", round(limit, 1))
        warm = asyncio.run(_warm(SERVERS["a light server"], Path(folder)))
        outcome.at_most("a session from the warm pool, with its first call", warm, "ms", MOST_WARM_MS)
    sandbox_cgroups.leave()
    return outcome


async def _warm(command: tuple[str, ...], folder: Path) -> float:
    """Milliseconds until a session is open if a process is ready for it."""
    server = ToolServer(command=command, session="process", sandbox=Sandbox(required=True))
    toolbox = Toolbox({"measured": server}, run_dir=folder, name="toolbox-0.1")
    taken = []
    async with toolbox.running():
        for number in range(REPEATS):
            await aeventually(lambda: toolbox.servers()[0].ready == server.pool, what="a full pool")
            began = time.perf_counter()
            await toolbox.open(OpenSession(id=f"s{number}", servers=("measured",), wait_s=30.0))
            await toolbox.call(
                "measured.echo", CallTool(session=f"s{number}", call=f"c{number}", arguments={"text": "a"})
            )
            taken.append((time.perf_counter() - began) * 1e3)
            await toolbox.close(f"s{number}")
    return median(taken)


async def _starts(command: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Milliseconds, plain and sandboxed."""
    taken: dict[str, list[float]] = {"none": [], "process": []}
    kinds = {"none": Sandbox(kind="none"), "process": Sandbox(required=True)}
    for _ in range(REPEATS):
        for kind, sandbox in kinds.items():
            server = ToolServer(command=command, sandbox=sandbox)
            began = time.perf_counter()
            connection = connector("measured", server, folder)()
            await connection.open()
            taken[kind].append((time.perf_counter() - began) * 1e3)
            await connection.close()
    return median(taken["none"]), median(taken["process"])
