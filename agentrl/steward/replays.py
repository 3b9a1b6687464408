"""Executes queued replays of tool calls through a toolbox, and judges them.

Invariants:
- A replay has sessions of its own, which no episode uses, and closes them.
- Every run of a call that may change its session has a freshly rebuilt one. If a call is lost while a session is
  rebuilt, the next try has a session of its own.
- A call with effects outside of its session is noted in the store before it is sent, and is sent once.
- Whichever process dies, a replay ends in one state: the lease of its steward decides who may move it.
"""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import msgspec

from agentrl.config.data_plane import ToolServer
from agentrl.config.http_token import RunToken
from agentrl.errors import AgentrlError, RefusedError, UnknownNameError
from agentrl.formatting.amounts import counted
from agentrl.policies.replay_verdicts import CallResult, Verdict, fault_of, is_same, judge, lost_its_session
from agentrl.policies.result_diff import Diff, compare
from agentrl.policies.status_tables import ReplayStatus
from agentrl.steward.replay_plans import ReplayPlan, ReplayPlanner
from agentrl.store import replays, service_registry
from agentrl.store.database import Database, Plain, StoreError
from agentrl.store.documents import Service, ToolCall
from agentrl.store.replay_documents import Replay, ReplayChange, ReplayedCall
from agentrl.toolbox.api_messages import (
    BadRequestError,
    CallAnswer,
    QuotaError,
    SessionError,
    ToolboxError,
    ToolboxGoneError,
    UnavailableError,
    UnknownToolError,
)
from agentrl.toolbox.client import ToolboxClient

log = logging.getLogger("replays")
AT_ONCE = 32
"""As many replays as the calls that a tool server takes at the same time."""
LOOK_EVERY_S = 0.5
FREE_ORPHANS_EVERY_S = 2.0
PATIENCE_S = 60.0
"""How long a replay waits for a toolbox, or for a server that is down."""
BUSY_PATIENCE_S = 3600.0
"""How long it waits for a free place at a server, where many replays of slow calls may take turns."""
AGAIN_S = 0.5
RESERVED_WITHIN_S = 30.0
STOPPED_WITHIN_S = 15.0
PUT_BACK_WITHIN_S = 5.0
"""How long an ending steward tries to put a replay back."""
REBUILD_TRIES = 3
"""How many sessions a run opens if calls that rebuild them are lost."""
MOST_RESULT_CHARS = 65_536
"""The most characters of a result in the document of a replay; a longer result keeps both ends."""

MOST_REBUILT_CHARS = 2_000
"""The same for a call that rebuilt the session; there may be many such calls."""


class _CannotRunError(Exception):
    """The call cannot run: its server or tool is not there, or its session cannot be rebuilt."""

    def __init__(self, reason: str, error_class: str = "") -> None:
        super().__init__(reason)
        self.error_class = error_class


class _InterruptedError(Exception):
    """The toolbox or its session is gone; whether a call ran is not known."""


class _NotMineError(Exception):
    """Another attempt has taken the replay."""


class ReplayRunner:
    """Takes and executes queued replays for a steward, while `run` runs."""

    def __init__(
        self, database: Database, servers: Mapping[str, ToolServer], *, owner: str, token: str | RunToken
    ) -> None:
        self._database = database
        self.servers = servers
        self._owner = owner
        self._token = token
        self.planner = ReplayPlanner(database, servers)
        self._clients: dict[str, ToolboxClient] = {}
        self._running: dict[tuple[str, int], asyncio.Task[None]] = {}
        """By id and attempt."""
        self._closing: set[asyncio.Task[None]] = set()
        self._freed_at = float("-inf")
        self._stopping = asyncio.Event()
        self._look = asyncio.Event()
        """Set when a replay has ended, or when no more are to be taken."""

    async def run(self) -> None:
        """Runs until `stop` is called, or until cancelled."""
        try:
            while not self._stopping.is_set():
                try:
                    await self._take_all()
                except StoreError as away:
                    log.warning("replays wait: %s", away.message)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_S):
                        await self._look.wait()
                self._look.clear()
            if self._running:
                await asyncio.wait(self._running.values(), timeout=STOPPED_WITHIN_S)
        finally:
            tasks = [*self._running.values(), *self._closing]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for client in self._clients.values():
                await client.aclose()

    def stop(self) -> None:
        """Take no more replays; those under way may end."""
        self._stopping.set()
        self._look.set()

    async def _take_all(self) -> None:
        if time.monotonic() >= self._freed_at + FREE_ORPHANS_EVERY_S:
            for orphan in await replays.free_orphans(self._database):
                closing = asyncio.create_task(self._close_session(orphan), name=f"close the session of {orphan.id}")
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
            await replays.free_unknown(self._database, self._owner, [id for id, _ in self._running])
            self._freed_at = time.monotonic()
        while len(self._running) < AT_ONCE and not self._stopping.is_set():
            replay = await replays.claim(self._database, self._owner)
            if replay is None:
                return
            key = (replay.id, replay.attempt)
            task = self._running[key] = asyncio.create_task(self._guarded(replay), name=f"replay {replay.id}")
            task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: tuple[str, int], _: asyncio.Task[None]) -> None:
        self._running.pop(key, None)
        # So that the next replay takes the place at once.
        self._look.set()

    async def _guarded(self, replay: Replay) -> None:
        """Run a replay, and put it back if it is interrupted."""
        try:
            await _Execution(self, replay, self._database).run()
        except _NotMineError:
            log.warning("%s belongs to another attempt now", replay.id)
        except asyncio.CancelledError:
            # The steward ends. If the store is away for longer than this, the next steward finds the replay by its dead
            # owner.
            with suppress(TimeoutError):
                async with asyncio.timeout(PUT_BACK_WITHIN_S):
                    await self._put_back(replay, "its steward was stopped")
            raise
        except _InterruptedError as interrupted:
            await self._put_back(replay, str(interrupted))
        except AgentrlError as failed:
            await self._put_back(replay, failed.message)
        except Exception as broken:  # a task boundary: one replay must not end the others
            log.exception("%s failed", replay.id)
            await self._put_back(replay, f"the steward failed ({broken!r})")

    async def _put_back(self, replay: Replay, why: str) -> None:
        while True:
            try:
                status = await replays.put_back(self._database, replay, why)
            except StoreError as away:
                log.warning("%s is not put back yet: %s", replay.id, away.message)
                await asyncio.sleep(AGAIN_S)
            else:
                log.warning("%s was interrupted (%s): %s", replay.id, why, status or "another attempt has it")
                return

    async def _close_session(self, replay: Replay) -> None:
        """Close the session that a dead steward left open; its place in a pool may be the only one."""
        with suppress(StoreError):
            for box in await self._able(replay.server) if replay.session else ():
                with suppress(ToolboxError):
                    await self._client(box.url).close(replay.session)

    async def toolbox(self, server: str, conversation: str) -> ToolboxClient | None:
        able = await self._able(server)
        return self._client(able[zlib.crc32(conversation.encode()) % len(able)].url) if able else None

    async def _able(self, server: str) -> list[Service]:
        return [box for box in await service_registry.alive(self._database, "toolbox") if server in box.names]

    def _client(self, url: str) -> ToolboxClient:
        if url not in self._clients:
            self._clients[url] = ToolboxClient(url, self._token)
        return self._clients[url]

    async def version(self, server: str) -> str:
        """The name and version that the server reports; empty if no toolbox knows them."""
        with suppress(ToolboxError):
            client = await self.toolbox(server, server)
            for one in await client.servers() if client is not None else ():
                if one.id == server:
                    return one.version
        return ""


class _Execution:
    def __init__(self, runner: ReplayRunner, replay: Replay, database: Database) -> None:
        self._runner = runner
        self._replay = replay
        self._database = database
        self._client: ToolboxClient | None = None
        self._session = ""
        self._sessions = 0
        self._sent_outside = False
        """A call with effects outside may have run in this session."""
        self._calls = 0

    async def run(self) -> None:
        replay = self._replay
        try:
            plan = await self._runner.planner.plan(replay.call, replay.server)
        except (RefusedError, UnknownNameError) as refused:
            await self._judged({"verdict": Verdict.CANNOT_RUN, "reason": refused.message})
            return
        if missing := set(plan.outside) - set(replay.allowed):
            names = ", ".join(sorted(missing))
            reason = f"not allowed by name, and outside of the session: {names}"
            await self._judged({"verdict": Verdict.CANNOT_RUN, "reason": reason})
            return
        try:
            await self._make_runs(plan)
        finally:
            await self._close()

    async def _make_runs(self, plan: ReplayPlan) -> None:
        replay = self._replay
        text = await replays.whole_result(self._database, plan.call.call)
        then = CallResult(plan.call.call.status, text, plan.call.call.error_class)
        runs: list[tuple[CallResult, ReplayedCall]] = []
        reason = error_class = ""
        try:
            for number in range(replay.times):
                if number == 0 or plan.fresh_session:
                    rebuilt, same = await self._rebuilt_session(plan)
                    if not same and not replay.despite_differences:
                        why = _difference(rebuilt)
                        await self._judged({"verdict": Verdict.NOT_REPRODUCIBLE, "rebuilt": rebuilt, "reason": why})
                        return
                    if number == 0:
                        await self._moved(ReplayStatus.REPLAYING, {"rebuilt": rebuilt})
                answer = await self._call(plan, plan.call.call.tool, replay.arguments)
                runs.append((_result(answer), await asyncio.to_thread(_replayed, plan.call.call, then, answer)))
        except _CannotRunError as refused:
            reason, error_class = str(refused), refused.error_class
        judged = await asyncio.to_thread(judge, then, [result for result, _ in runs])
        await self._judged(
            {
                "verdict": judged.verdict,
                "agreed": judged.agreed,
                "fault": "" if replay.edited else fault_of(then, judged.verdict),
                "runs": [run for _, run in runs],
                "reason": reason,
                "error_class": error_class,
            }
        )

    async def _rebuilt_session(self, plan: ReplayPlan) -> tuple[list[ReplayedCall], bool]:
        """Open a session and rebuild it; again in a fresh one if a call is lost, unless one with effects outside may
        have run in it."""
        lost = ""
        for _ in range(REBUILD_TRIES):
            await self._open(plan)
            try:
                return await self._rebuild(plan)
            except _InterruptedError as interrupted:
                if self._sent_outside:
                    raise
                lost = str(interrupted)
                log.warning("%s: the session %s is rebuilt again: %s", self._replay.id, self._session, lost)
        raise _CannotRunError(f"{counted(REBUILD_TRIES, 'sessions')} could not be rebuilt: {lost}", "infrastructure")

    async def _rebuild(self, plan: ReplayPlan) -> tuple[list[ReplayedCall], bool]:
        """Returns the calls that were made, up to the first difference unless differences are allowed, and whether all
        results were the same."""
        replayed_calls: list[ReplayedCall] = []
        for earlier in plan.rebuild:
            text = await replays.whole_result(self._database, earlier.call)
            then = CallResult(earlier.call.status, text, earlier.call.error_class)
            answer = await self._call(plan, earlier.call.tool, earlier.call.arguments)
            if lost_its_session(then, _result(answer)):
                raise _InterruptedError(f"{earlier.call.id} ({earlier.call.tool}) was lost: {answer.content}")
            # In a thread, because long results take a while to compare.
            replayed = await asyncio.to_thread(_replayed, earlier.call, then, answer, most_chars=MOST_REBUILT_CHARS)
            replayed_calls.append(replayed)
            if not replayed_calls[-1].same and not self._replay.despite_differences:
                break
        return replayed_calls, all(one.same for one in replayed_calls)

    # ---- the toolbox ----

    async def _open(self, plan: ReplayPlan) -> None:
        """Open another session, and wait for a place. Opening it twice is harmless."""
        await self._close()
        replay = self._replay
        self._session = f"{replay.id}#{replay.attempt}.{self._sessions}"
        self._sessions += 1
        self._sent_outside = False
        began = time.monotonic()
        while True:
            try:
                client = await self._runner.toolbox(plan.server, replay.id)
                if client is None:
                    raise UnavailableError(f"no toolbox serves {plan.server}")
                if not await replays.note_session(self._database, replay, self._session):
                    raise _NotMineError
                await client.open(self._session, [plan.server], wait_s=RESERVED_WITHIN_S, replays=True)
                self._client = client
                version = await self._runner.version(plan.server) if self._sessions == 1 else ""
                if version:
                    await replays.note_session(self._database, replay, self._session, version)
                return
            except (UnknownToolError, BadRequestError) as refused:
                raise _CannotRunError(refused.message) from refused
            except ToolboxError as away:
                if time.monotonic() > began + _patience_s(away):
                    raise _CannotRunError(away.message, "infrastructure") from away
            await asyncio.sleep(AGAIN_S)

    async def _call(self, plan: ReplayPlan, tool: str, arguments: dict[str, object]) -> CallAnswer:
        assert self._client is not None
        self._calls += 1
        id = f"{self._session}.{self._calls}"
        if plan.acts_outside(tool):
            # Durable before it is sent: a steward that finds this replay interrupted must not send the call again.
            noted = await replays.note_sent(self._database, self._replay, f"{plan.server}.{tool}")
            if not noted:
                raise _NotMineError
            self._sent_outside = True
        began = time.monotonic()
        while True:
            try:
                return await self._client.call(self._session, id, plan.server, tool, arguments)
            except (UnknownToolError, BadRequestError) as refused:
                raise _CannotRunError(refused.message) from refused
            except (QuotaError, UnavailableError) as busy:
                if time.monotonic() > began + _patience_s(busy):
                    raise _CannotRunError(busy.message, "infrastructure") from busy
            except (ToolboxGoneError, SessionError, ToolboxError) as gone:
                raise _InterruptedError(gone.message) from gone
            await asyncio.sleep(AGAIN_S)

    async def _close(self) -> None:
        if self._client is not None and self._session:
            client, self._client = self._client, None
            with suppress(ToolboxError):
                await client.close(self._session)

    # ---- the store ----

    async def _moved(self, target: ReplayStatus, fields: Plain) -> None:
        if not await replays.move(self._database, self._replay, target, fields):
            raise _NotMineError

    async def _judged(self, fields: Plain) -> None:
        await self._moved(ReplayStatus.JUDGED, fields)


def _patience_s(refusal: ToolboxError) -> float:
    return BUSY_PATIENCE_S if isinstance(refusal, QuotaError) else PATIENCE_S


def _result(answer: CallAnswer) -> CallResult:
    return CallResult(answer.status, answer.content, answer.error_class)


def _replayed(
    recorded: ToolCall, then: CallResult, answer: CallAnswer, *, most_chars: int = MOST_RESULT_CHARS
) -> ReplayedCall:
    now = _result(answer)
    same = is_same(then, now)
    diff = Diff() if same else compare(then, now)
    return ReplayedCall(
        call=recorded.id,
        tool=recorded.tool,
        status=answer.status,
        error_class=answer.error_class,
        result=both_ends(answer.content, most_chars),
        latency_s=answer.latency_s,
        same=same,
        changes=[ReplayChange(change.path, change.then, change.now) for change in diff.changes],
        changes_left_out=diff.left_out,
    )


def _difference(rebuilt: list[ReplayedCall]) -> str:
    first = next(one for one in rebuilt if not one.same)
    change = first.changes[0] if first.changes else ReplayChange("result")
    return f"{first.call} ({first.tool}) returned something else: {change.path} was {change.then}, is {change.now}"


def both_ends(text: str, most_chars: int = MOST_RESULT_CHARS) -> str:
    if len(text) <= most_chars:
        return text
    half = most_chars // 2
    return f"{text[:half]}\n[… {counted(len(text) - 2 * half, 'characters')} left out …]\n{text[-half:]}"


def then_of(recorded: ToolCall, text: str) -> ReplayedCall:
    """The recorded call, as a replay shows it."""
    plain = msgspec.structs.asdict(recorded)
    kept = {name: plain[name] for name in ("tool", "status", "error_class", "latency_s")}
    return ReplayedCall(call=recorded.id, result=both_ends(text), same=True, **kept)
