"""A stage for samplers: a real database, engines over HTTP, real toolboxes, and tasks that are admitted."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl.config import policy_rules
from agentrl.config.data_plane import Rollout
from agentrl.config.run import RunConfig
from agentrl.engines.embedded.tiny_model import build_tiny
from agentrl.http.token_server import listening
from agentrl.policies.status_tables import ToolCallStatus
from agentrl.rollout import chat_format
from agentrl.rollout.attempt import SamplerContext
from agentrl.rollout.other_models import Helpers
from agentrl.rollout.record_ending import RecordEnder
from agentrl.rollout.sampler import Sampler
from agentrl.rollout.scorers import close_scorers
from agentrl.rollout.service_directory import SamplerToolbox, ServiceDirectory
from agentrl.rollout.shown_images import DatabaseShelf, ShownImages
from agentrl.rollout.user_code_faults import UserCodeFaults
from agentrl.store import service_registry, tasks
from agentrl.store.call_writer import Writer
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.document_ids import task_id
from agentrl.store.documents import (
    DBRecordData,
    DispatchedSamplingTask,
    Document,
    Record,
    Service,
    Task,
    ToolCall,
    load,
)
from agentrl.store.other_model_calls import StoredLedger
from agentrl.store.owners import Lease
from agentrl.toolbox.api import build_app as build_toolbox_app
from agentrl.toolbox.service_report import ServiceReporter
from agentrl.toolbox.toolbox import Toolbox
from tests.rollout.actors import Engine
from tests.waiting import PATIENCE_S, aeventually

TOKEN = "a-token-for-tests-only"
FAULTY = Path(__file__).parents[1] / "toolbox" / "faulty_servers.py"
TEXTS = [
    f"what costs {n} pears? <tool_call>lookup(pear)</tool_call> <answer>{3 * n}</answer> it costs" for n in range(30)
]
ENDED = ("finished", "failed", "abandoned", "scored", "unscored", "unscorable")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    build_tiny(directory, TEXTS, seed=1, max_position_embeddings=1024)
    return directory


@pytest.fixture(scope="session")
def words(model_dir: Path) -> chat_format.ChatFormat:
    return chat_format.read(model_dir)


@pytest.fixture(autouse=True)
async def _scorers_end() -> AsyncIterator[None]:
    yield
    await close_scorers()


def configuration(**sections: Any) -> RunConfig:
    plain: dict[str, Any] = {
        "name": "test",
        "model": {"build": "tiny"},
        "environments": {"shop": {"dataset": "none.jsonl", "parser": "minicpm", "agent": "tool_agent"}},
        "sampling": {"n": 2, "max_tokens": 600, "context": 4000},
        "rollout": {"episode_s": 60, "call_s": 20},
    }
    for name, section in sections.items():
        plain[name] = {**plain.get(name, {}), **section}
    return RunConfig.model_validate(plain)


def unruly_tools(**settings: Any) -> dict[str, Any]:
    command = (sys.executable, str(FAULTY))
    # Without a sandbox, because tests look at files that it writes.
    server = {"command": command, "session": "keyed", "timeout_s": 20, "sandbox": "none", **settings}
    environment = {"dataset": "none.jsonl", "parser": "minicpm", "agent": "tool_agent", "tools": ["faulty"]}
    return {"tools": {"faulty": server}, "environments": {"shop": environment}}


@dataclass
class Stage:
    """Everything that samplers need, and short methods to look at their results."""

    db: Database
    words: chat_format.ChatFormat
    config: RunConfig = field(default_factory=configuration)
    waits: list[tuple[str, str]] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    """Agent loops and scorers that fail each time, with the reason."""
    engines: int = 0
    made_engines: list[Engine] = field(default_factory=list)
    stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    # ---- engines, toolboxes and samplers ----

    async def engine(self, says: Callable[..., Any], *, url: str = "", version: int = 1) -> Engine:
        """Start an engine with scripted answers, and report it to the store as serving."""
        engine = Engine(self.words.template, says, version)
        self.made_engines.append(engine)
        if not url:
            url = await self.stack.enter_async_context(listening(engine.app()))
        await self.register("engine", f"engine-{self.engines}", url, version=version, slots=64)
        self.engines += 1
        return engine

    async def toolbox(self, **options: Any) -> Toolbox:
        made = Toolbox(self.config.tools, run_dir=Path.cwd(), name="toolbox-0.1", **options)
        await self.stack.enter_async_context(made.running())
        url = await self.stack.enter_async_context(listening(build_toolbox_app(made, TOKEN)))
        await aeventually(lambda: all(server.usable for server in made.servers()), what="tool servers are up")
        me = Service(id="toolbox-0.1", unit="toolbox-0", url=url)
        await self._repeat(ServiceReporter(made, self.db, me).report, every_s=0.1)
        return made

    @contextlib.asynccontextmanager
    async def short_lived_toolbox(self) -> AsyncIterator[Toolbox]:
        """A toolbox that ends after the body and forgets everything."""
        made = Toolbox(self.config.tools, run_dir=Path.cwd(), name="toolbox-0.0")
        async with listening(build_toolbox_app(made, TOKEN)) as url, made.running():
            names = sorted(self.config.tools)
            me = Service(id="toolbox-0.0", unit="toolbox-0", kind="toolbox", url=url, state="serving", names=names)
            await aeventually(lambda: all(server.usable for server in made.servers()), what="tool servers are up")
            await service_registry.report(self.db, me)
            yield made
            me.state = "gone"
            await service_registry.report(self.db, me)

    async def register(self, kind: str, unit: str, url: str, **fields: Any) -> None:
        service = Service(id=f"{unit}.1", unit=unit, kind=kind, url=url, state="serving", **fields)
        await self._repeat(lambda: service_registry.report(self.db, service), every_s=1.0)

    async def _repeat(self, report: Callable[[], Awaitable[None]], *, every_s: float) -> None:
        """Report now, and repeatedly until the stage ends."""

        async def repeat() -> None:
            while True:
                await asyncio.sleep(every_s)
                with contextlib.suppress(StoreUnavailableError):
                    await report()

        await report()
        self.stack.callback(asyncio.create_task(repeat(), name="report").cancel)

    @contextlib.asynccontextmanager
    async def sampler(
        self,
        name: str = "sampler-0.1",
        *,
        concurrency: int = 16,
        settings: Rollout | None = None,
        db: Database | None = None,
    ) -> AsyncIterator[Sampler]:
        """A sampler that runs during the body and is drained at the end, unless it has ended before. `db` is its own
        connection to the store, if it does not share that of the test."""
        db = db or self.db
        lease = Lease(db, name, unit=name.partition(".")[0], role="sampler")
        await lease.open()
        directory = ServiceDirectory(db, TOKEN, lambda url: SamplerToolbox(url, TOKEN))
        await directory.look()
        faults = UserCodeFaults(lambda of, why: self.faults.update({of: why}))
        context = SamplerContext(
            config=self.config,
            database=db,
            writer=Writer(db, lease.certain),
            lease=lease,
            directory=directory,
            endings=RecordEnder(db, lease, policy_rules.group_rule(self.config), faults, wait=self._wait),
            faults=faults,
            template=self.words.template,
            vocabulary=self.words.vocabulary,
            wait=self._wait,
            images=ShownImages(DatabaseShelf(db), self.words.images, most_bytes=1 << 20),
            helpers=(helpers := Helpers(self.config, StoredLedger(db, name.partition(".")[0]))),
        )
        chosen = settings or Rollout(call_s=20.0, episode_s=60.0)
        sampler = Sampler(context, concurrency=concurrency, settings=lambda: chosen, tick=lambda: None)
        running = asyncio.create_task(sampler.run(), name=name)
        try:
            yield sampler
        finally:
            sampler.drain()
            try:
                async with asyncio.timeout(60):
                    await running
                await lease.close()
            finally:
                await helpers.models.close()
                await directory.close()

    @contextlib.contextmanager
    def _wait(self, what: str, on: str, at_most_s: float) -> Iterator[None]:
        self.waits.append((what, on))
        yield

    # ---- tasks ----

    async def task(
        self, query: str = "what costs a pear?", answer: str = "3", *, n: int = 2, sampling: Any = None, **fields: Any
    ) -> Task:
        """Create an admitted task. Its environment gives the fields that are left out."""
        number = await self.db.count("Task", {})
        environment = self.config.environments["shop"]
        task = Task(
            id=task_id("shop", "train", 0, number),
            environment="shop",
            row=number,
            place=number,
            query=query,
            answer=answer,
            **{
                "scorer": environment.scorer,
                "answer_schema": environment.answer_schema,
                "agent_name": environment.agent,
                "servers": list(environment.tools),
                **fields,
            },
        )
        await tasks.insert(self.db, [task])
        frozen = {"temperature": 1.0, "top_p": 1.0, "max_tokens_per_call": 600, "context": 4000, **(sampling or {})}
        assert await tasks.admit(self.db, [task], n=n, sampling=frozen, deadline_s=600, rounds_max=3)
        return await tasks.get(self.db, task.id)

    # ---- results ----

    async def all(self, kind: type[Document], **filter: Any) -> list[Any]:
        return [load(kind, found) for found in await self.db.find(kind.__name__, filter, sort=[("_id", 1)])]

    async def ended(self, *, count: int = 1, within_s: float = PATIENCE_S) -> list[Record]:
        """Wait for this many ended records, all of them scored. Returns them."""

        async def look() -> list[Record] | None:
            records = await self.all(Record)
            over = [one for one in records if one.status in ENDED and one.status != "finished"]
            return over if len(over) >= count else None

        return await aeventually(look, within_s=within_s, what=f"{count} records ended")

    async def one(self) -> Record:
        return (await self.ended())[0]

    async def turns(self) -> list[DispatchedSamplingTask]:
        """The documents in which turns ended."""
        return [call for call in await self.calls() if call.over_at is not None]

    async def calls(self) -> list[DispatchedSamplingTask]:
        found = await self.all(DispatchedSamplingTask)
        return sorted(found, key=lambda call: (call.record, call.index))

    async def tool_calls(self) -> list[ToolCall]:
        return [tool for call in await self.calls() for tool in call.tool_calls]

    async def data(self) -> list[DBRecordData]:
        return await self.all(DBRecordData)

    async def open_ends(self) -> list[str]:
        """Calls that still wait for an answer."""
        calls = [call.id for call in await self.calls() if call.status == "sent"]
        waiting = (ToolCallStatus.REQUESTED, ToolCallStatus.RUNNING)
        return calls + [call.id for call in await self.tool_calls() if call.status in waiting]


@pytest.fixture
async def stage(db: Database, words: chat_format.ChatFormat) -> AsyncIterator[Stage]:
    made = Stage(db, words)
    async with made.stack:
        yield made
