"""A toolbox and a steward that replay tool calls, for tests."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from agentrl.config.data_plane import ToolServer
from agentrl.http.token_server import listening
from agentrl.protocol.data_changes import Done, ReplayCalls
from agentrl.protocol.message_base import Args
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.protocol.wire import raw
from agentrl.queries.dispatcher import Dispatcher
from agentrl.steward.replays import ReplayRunner
from agentrl.steward.settings import EnvironmentSettings, StewardSettings
from agentrl.store import owners, replays, service_registry
from agentrl.store.call_writer import CALLS, now
from agentrl.store.database import Database
from agentrl.store.documents import Service
from agentrl.store.replay_documents import Replay
from agentrl.toolbox.api import build_app
from agentrl.toolbox.toolbox import Toolbox
from tests.toolbox.conftest import TOKEN
from tests.waiting import aeventually

RECORD = "shop/train/0/000000#r1.s0.a1"
Start = Callable[..., Awaitable["House"]]


class House:
    """A toolbox over HTTP, and a steward's replays beside it."""

    def __init__(self, db: Database, run_dir: Path, servers: dict[str, ToolServer]) -> None:
        self.db = db
        self.run_dir = run_dir
        self.servers = servers
        self.toolbox = Toolbox(servers, run_dir=run_dir, name="toolbox-0.1")
        self.runner: ReplayRunner | None = None
        self._asked = 0

    @contextlib.asynccontextmanager
    async def toolbox_up(self, *, killed: bool = False) -> AsyncIterator[None]:
        """Run the toolbox. With `killed`, its connections break at the end before its calls have ended."""
        toolbox = contextlib.AsyncExitStack()
        async with toolbox:
            if killed:
                await toolbox.enter_async_context(self.toolbox.running())
            url = await toolbox.enter_async_context(listening(build_app(self.toolbox, TOKEN)))
            if not killed:
                await toolbox.enter_async_context(self.toolbox.running())
            me = Service(id="toolbox-0.1", unit="toolbox-0", kind="toolbox", url=url, state="serving")
            me.names = list(self.servers)
            reporting = asyncio.create_task(self._report(me))
            try:
                await aeventually(self._is_serving)
                await self._report_once(me)
                yield
            finally:
                reporting.cancel()
                await asyncio.wait([reporting])

    async def _is_serving(self) -> bool:
        here = await service_registry.alive(self.db, "toolbox")
        return bool(here) and all(server.state == "serving" for server in self.toolbox.servers())

    async def _report(self, me: Service) -> None:
        while True:
            await self._report_once(me)
            await asyncio.sleep(1.0)

    async def _report_once(self, me: Service) -> None:
        me.effects = [(tool.server, tool.name, tool.effect) for tool in self.toolbox.tools() if tool.effect]
        await service_registry.report(self.db, me)

    @contextlib.asynccontextmanager
    async def steward_up(self, owner: str = "steward-0.1") -> AsyncIterator[asyncio.Task[None]]:
        """A steward that runs only replays."""
        await owners.Lease(self.db, owner, unit="steward-0", role="steward").open()
        self.runner = ReplayRunner(self.db, self.servers, owner=owner, token=TOKEN)
        task = asyncio.create_task(self.runner.run())
        try:
            yield task
        finally:
            self.runner.stop()
            await asyncio.wait([task])

    async def ask(self, name: str, args: Args, *, dry_run: bool = False, id: str = "") -> Any:
        self._asked += 1
        settings = StewardSettings(environments={"shop": EnvironmentSettings()})
        runner = self.runner or ReplayRunner(self.db, self.servers, owner="steward-0.1", token=TOKEN)
        dispatcher = Dispatcher(self.db, lambda: settings, {}, self.run_dir, replays=runner)
        question = AskUnit("1", id or f"{self._asked:08d}-operation", name, raw(args), who="ada", dry_run=dry_run)
        return await dispatcher.answer(question)

    async def replay(self, *calls: str, **args: Any) -> list[Replay]:
        """Replay, wait for the end, and return the documents."""
        id = f"{self._asked:08d}-replay"
        wanted = ReplayCalls(calls=calls, **args)

        async def ended() -> Done | None:
            done: Done = await self.ask("replay_calls", wanted, id=id)
            return None if done.under_way else done

        await aeventually(ended, what="the end of the replay")
        return [await replays.get(self.db, each.id) for each in await replays.of_operation(self.db, id)]

    async def one(self, call: str, **args: Any) -> Replay:
        (replay,) = await self.replay(call, **args)
        return replay


async def recorded(db: Database, *calls: tuple[str, dict[str, Any], str, str], server: str = "faulty") -> list[str]:
    """Store a record with one tool call a turn: tool, arguments, status and result. Returns the ids."""
    ids = []
    for turn, (tool, arguments, status, result) in enumerate(calls):
        model_call = f"{RECORD}/{turn:03d}"
        ids.append(f"{model_call}.0")
        error = "" if status == "ok" else "infrastructure"
        call = {"id": ids[-1], "server": server, "tool": tool, "arguments": arguments, "status": status}
        call |= {"result": result, "error_class": error, "latency_s": 0.5, "session": RECORD, "requested_at": now()}
        document = {"_id": model_call, "record": RECORD, "task": RECORD.partition("#")[0], "turn": turn}
        await db.insert_many(CALLS, [document | {"index": turn, "tool_calls": [call]}])
    return ids


async def everything(db: Database) -> list[dict[str, Any]]:
    return await db.find(CALLS, {}, sort=[("_id", 1)])
