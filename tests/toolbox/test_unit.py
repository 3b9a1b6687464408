"""The toolbox as a real unit with a real database: its Service document, its drain, and its processes after the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from agentrl.config.http_token import http_token
from agentrl.host import procfs
from agentrl.http.free_ports import free_port
from agentrl.protocol import messages
from agentrl.store.database import Database
from agentrl.store.owners import Lease
from agentrl.toolbox.api_messages import UnavailableError
from agentrl.toolbox.client import ToolboxClient
from daemons.toolbox import DRAIN_WITHIN_S
from tests.store.server import NAME
from tests.toolbox.conftest import FAULTY
from tests.unit.fake_coordinator import Counterpart, Process
from tests.waiting import aeventually

GUEST = "the-token-of-a-guest"


class Unit:
    """One incarnation of the unit, with two servers of which one cannot start."""

    def __init__(self, counterpart: Counterpart, mongo_url: str, session: dict[str, Any]) -> None:
        self.counterpart = counterpart
        self.directory = counterpart.directory
        (self.directory / "mongo").mkdir()
        (self.directory / "mongo" / "url").write_text(mongo_url)
        config: dict[str, Any] = {
            "name": NAME,
            "model": {"build": "tiny"},
            "environments": {"shop": {"dataset": "train.jsonl", "tools": ["faulty", "broken"]}},
            "tools": {
                "faulty": {"command": [sys.executable, str(FAULTY)], **session},
                "broken": {"command": ["sh", "-c", "echo no library >&2; exit 7"], "session": "shared"},
            },
        }
        (self.directory / "guest").write_text(GUEST)
        self.port = free_port()
        config["outside"] = {"port": self.port, "tokens": {"guest": f"file:{self.directory / 'guest'}"}}
        (self.directory / "config.json").write_text(json.dumps(config))
        # The counterpart's environment, with the state directory and a name of its own.
        program = self.directory / "life.py"
        program.write_text(
            "import os, runpy\n"
            f"os.environ['AGENTRL_STATE_DIR'] = {str(self.directory)!r}\n"
            "os.environ['AGENTRL_INCARNATION'] = 'toolbox-0.4'\n"
            "os.environ['AGENTRL_GROUP'] = 'toolbox'\n"
            "runpy.run_module('daemons.toolbox', run_name='__main__', alter_sys=True)\n"
        )
        self.process = Process(counterpart, [str(program)])

    async def ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.process.poll() is None, self.process.text()
            return self.counterpart.report.ready

        await aeventually(is_ready)

    def servers(self) -> list[psutil.Process]:
        found = []
        for child in psutil.Process(self.process.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # the server that cannot start is tried again repeatedly
                found += [child] if str(FAULTY) in child.cmdline() else []
        return found


@pytest.fixture
async def unit(request: pytest.FixtureRequest, mongo_url: str, db: Database) -> AsyncIterator[Unit]:
    with tempfile.TemporaryDirectory(prefix="toolbox-", ignore_cleanup_errors=True) as directory:
        counterpart = Counterpart(Path(directory))
        counterpart.start()
        made = Unit(counterpart, mongo_url, getattr(request, "param", {"session": "keyed"}))
        yield made
        made.process.close()
        counterpart.close()


async def service(db: Database, **expected: Any) -> dict[str, Any]:
    async def found() -> dict[str, Any] | None:
        return await db.find_one("Service", {"kind": "toolbox", **expected})

    return await aeventually(found, what=f"a Service with {expected}")


async def test_a_toolbox_unit_registers_serves_and_drains(unit: Unit, db: Database) -> None:
    await unit.ready()
    told = await service(db, state="serving", unavailable=["broken"])
    assert (told["_id"], told["unit"], told["names"]) == ("toolbox-0.4", "toolbox-0", ["faulty", "broken"])
    await aeventually(lambda: "no library" in unit.counterpart.report.status)
    await aeventually(lambda: "no library" in unit.counterpart.report.problems.get("tool server broken", ""))
    await aeventually(lambda: unit.counterpart.report.incomplete == "")
    async with ToolboxClient(told["url"], http_token(unit.directory)) as tools:
        sampler = Lease(db, "sampler-0.1", unit="sampler-0", role="sampler")
        await sampler.open()
        await tools.open("s", ["faulty"])
        answer = await tools.call("s", "c", "faulty", "environment", {})
        seen = json.loads(answer.content)
        assert (seen["AGENTRL_MARK"], seen["AGENTRL_INCARNATION"]) == (procfs.mark_of("run-uuid"), "toolbox-0.4")
        assert not {"AGENTRL_RUN", "AGENTRL_TOKEN", "AGENTRL_COORDINATOR", "AGENTRL_STATE_DIR"} & set(seen)
        await service(db, running=1)

        async with (
            httpx2.AsyncClient(headers={"Authorization": f"Bearer {GUEST}"}) as http,
            Client(streamable_http_client(f"http://127.0.0.1:{unit.port}/mcp/faulty", http_client=http)) as guest,
        ):
            result = await guest.call_tool("echo", {"text": "from outside"})
            assert [block.text for block in result.content] == ["from outside"]

        (server,) = unit.servers()
        unit.counterpart.tell(messages.Drain(grace_s=60))
        await service(db, state="draining")
        with pytest.raises(UnavailableError):
            await tools.open("late", ["faulty"])
        assert (await tools.call("s", "d", "faulty", "echo", {"text": "still"})).content == "still"
        await sampler.close()
        # The session stays open, and no sampler will close it.
    async with asyncio.timeout(DRAIN_WITHIN_S - 5):
        assert await unit.process.code() == 0, unit.process.text()
    assert not server.is_running()
    await service(db, state="gone")


@pytest.mark.parametrize("unit", [{"session": "process", "pool": 1}], indirect=True)
async def test_report_of_the_unit_names_a_pool_that_is_too_small(unit: Unit, db: Database) -> None:
    await unit.ready()
    found = await service(db, state="serving", unavailable=["broken"])
    async with ToolboxClient(found["url"], http_token(unit.directory)) as tools:
        await tools.open("first", ["faulty"])
        waiting = asyncio.create_task(tools.open("second", ["faulty"], wait_s=60.0))

        def waits() -> list[messages.Wait]:
            return [wait for wait in unit.counterpart.report.waits if wait.on == "tool server faulty"]

        (wait,) = await aeventually(waits, what="the wait for a process")
        assert wait.who == "toolbox-0"
        assert "tools.faulty.pool" in wait.what
        await tools.close("first")
        await waiting
        await aeventually(lambda: not waits(), what="no session waits any more")


async def test_servers_of_a_killed_toolbox_end(unit: Unit) -> None:
    await unit.ready()
    server = (await aeventually(unit.servers))[0]
    unit.process.signal(signal.SIGKILL)
    await unit.process.code()
    await aeventually(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE)
