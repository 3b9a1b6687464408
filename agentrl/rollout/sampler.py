"""Many episodes in one process: claims, concurrency, drain.

Invariants: never more episodes than `concurrency`, and a lowered one cuts none off; nothing is claimed while no engine
serves, while this sampler is paused or drains, while its lease is in doubt, or for environments whose tools are not
available; a drain gives resumable episodes back at once, gives the others some time to end, and then abandons them;
ended records that could not be scored are scored again, including those that dead samplers left; a record that this
sampler owns in the store without knowing it, because the answer to a claim or to an ending was lost, is given back or
scored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from agentrl.config.data_plane import Rollout
from agentrl.environments import user_tasks
from agentrl.environments.user_code_guard import LoopWatch, no_exit
from agentrl.errors import DiskError
from agentrl.http import kept_traces
from agentrl.policies.outcomes import Outcome
from agentrl.policies.status_tables import RecordStatus
from agentrl.rollout import agent_loops, single_turn, tool_agent
from agentrl.rollout.attempt import Attempt, SamplerContext
from agentrl.rollout.episode_errors import EpisodeExit
from agentrl.rollout.user_code_faults import UserCodeFaults, scoring_of
from agentrl.store import cancellations, claims
from agentrl.store.claims import Claim
from agentrl.store.database import StoreError
from agentrl.store.documents import Record

log = logging.getLogger("sampler")
SHIPPED = (single_turn.SingleTurnAgent, tool_agent.ToolAgent)
"""Loops that every sampler knows; importing them registers them."""
IDLE_S = 0.05
MOST_IDLE_S = 0.5
"""Between claims while nothing is open."""
MOST_AT_ONCE = 16
"""The most seats of one claim, so that several samplers share the open seats."""
LOOK_S = 0.25
FEW_WAIT_S = 0.1
"""With only a few free places a claim waits for more, because a claim of many records costs as much as a claim of
one."""
AWAY_S = 1.0
NO_ENGINE = "no engine serves"
NO_TOOLBOX = "no toolbox serves what the environments need"
_MISSING = {NO_ENGINE: "engine", NO_TOOLBOX: "toolbox"}
"""The groups without which nothing can be claimed."""
SERVED_WITHIN_S = 120.0
FINISH_WITHIN_S = 30.0
"""The time that a drain gives episodes that cannot be resumed."""
RESCORE_EVERY_S = 2.0
MOST_RESCORE_S = 120.0
CHECK_EVERY_S = 2.0
CHECK_PATIENCE_S = 60.0
"""How long the test of another model that was away waits for an answer; services rest for 30 s at most."""
STOP_EVERY_S = 2.0
"""How often a sampler looks which of its episodes were cancelled."""


class Sampler:
    """`run` it until it was drained. `paused`, `draining` and `concurrency` may be changed at any time."""

    def __init__(
        self,
        context: SamplerContext,
        *,
        concurrency: int,
        settings: Callable[[], Rollout],
        tick: Callable[[], None],
    ) -> None:
        """`settings` is called at each claim, `tick` whenever there is progress."""
        self._context = context
        self._settings = settings
        self._tick = tick
        self._attempts: dict[Attempt, asyncio.Task[None]] = {}
        self._last_claims = claims.LastClaims(context.database)
        self._unscored: dict[str, _Waiting] = {}
        """By Record."""
        self._claiming = False
        self._claimed_at = float("-inf")
        self._strays: set[str] = set()
        """Records that this sampler owned at the last look although no episode here works on them."""
        self._changed = asyncio.Event()
        self._heeds_ends = True
        """True if the end of an episode wakes `_wait`."""
        self._concurrency = concurrency
        self._drain_began: float | None = None
        self.paused = False
        self.ended = 0
        """Episodes that this process has ended."""
        self._waiting = contextlib.ExitStack()
        self._waits_for = ""
        """The group for which it waits, if it does."""
        self.idle_because = ""
        """Why nothing is claimed, in words; empty while something is."""

    @property
    def running(self) -> int:
        return len(self._attempts)

    @property
    def faults(self) -> UserCodeFaults:
        return self._context.faults

    @property
    def _records(self) -> set[str]:
        """The records that episodes here work on."""
        return {attempt.claim.record.id for attempt in self._attempts}

    @property
    def concurrency(self) -> int:
        return self._concurrency

    @concurrency.setter
    def concurrency(self, value: int) -> None:
        self._concurrency = value
        self._changed.set()

    @property
    def version(self) -> int | None:
        """The newest version that engines serve."""
        return self._context.directory.newest_version

    def helper_metrics(self) -> Mapping[str, float]:
        """Metrics of other models, if the run has any."""
        helpers = self._context.helpers
        return helpers.metrics() if helpers is not None and helpers.models.names else {}

    @property
    def draining(self) -> bool:
        return self._drain_began is not None

    def drain(self) -> None:
        """Stop claiming, and end."""
        if self._drain_began is None:
            self._drain_began = time.monotonic()
        self._context.endings.rescorer.paused = True
        self._changed.set()

    def cancel_drain(self) -> None:
        self._drain_began = None
        self._context.endings.rescorer.paused = False
        self._changed.set()

    async def run(self) -> None:
        """Runs until drained. Raises OwnerLostError if this incarnation was declared dead."""
        context = self._context
        if context.helpers is not None:
            context.helpers.provide()
        user_tasks.install()
        with LoopWatch(self.faults.late), no_exit():
            await self._run()
        await kept_traces.announce_now()
        await context.writer.close()

    async def _run(self) -> None:
        context = self._context
        async with asyncio.TaskGroup() as tasks:
            helpers = [
                tasks.create_task(context.lease.keep(), name="keep the lease"),
                tasks.create_task(context.directory.watch(), name="watch engines and toolboxes"),
                tasks.create_task(kept_traces.announce(), name="announce kept traces"),
                tasks.create_task(self._score_again(), name="score again"),
                tasks.create_task(self._see_who_is_back(), name="ask other models that were away"),
                tasks.create_task(self._stop_cancelled(), name="stop cancelled episodes"),
                tasks.create_task(context.endings.rescorer.run(), name="score what operators want scored again"),
            ]
            try:
                await self._work(tasks)
            finally:
                for helper in helpers:
                    helper.cancel()

    # ---- claiming ----

    async def _work(self, tasks: asyncio.TaskGroup) -> None:
        idle_s = IDLE_S
        while not (self.draining and not self._attempts):
            if self.draining:
                await self._drain_further()
                continue
            self.idle_because = self._obstacle()
            self._report_wait()
            if self.idle_because:
                await self._wait(FEW_WAIT_S)
                continue
            ended = self.ended
            if await self._claim(tasks):
                idle_s = IDLE_S
            else:
                self.idle_because = self.idle_because or "nothing is open"
                # Nothing is open, so a place that becomes free here changes nothing.
                await self._wait(idle_s, heeds_ends=False)
                # Ended episodes make room for more tasks to be admitted, so look again soon.
                idle_s = min(2 * idle_s, MOST_IDLE_S) if self.ended == ended else IDLE_S

    def _obstacle(self) -> str:
        """Why nothing may be claimed now."""
        if self.paused:
            return "paused"
        if self._is_full():
            return "full"
        if not self._context.lease.valid:
            return "the lease could not be renewed"
        if not self._context.directory.serves:
            return NO_ENGINE
        if not self._environments():
            return NO_TOOLBOX
        return ""

    def _is_full(self) -> bool:
        """True also while only a few places are free: they are filled together with places that become free soon."""
        free = self._concurrency - self.running
        return free <= 0 or (8 * free < self._concurrency and time.monotonic() < self._claimed_at + FEW_WAIT_S)

    def _report_wait(self) -> None:
        """Reports that nothing can be claimed without an engine or a toolbox."""
        missing = _MISSING.get(self.idle_because, "")
        if missing != self._waits_for:
            self._waits_for = missing
            self._waiting.close()
            if missing:
                self._waiting.enter_context(self._context.wait(self.idle_because, missing, SERVED_WITHIN_S))

    def _environments(self) -> list[str]:
        """The environments whose tools can be called."""
        return [
            name
            for name, environment in self._context.config.environments.items()
            if not environment.tools or self._context.directory.toolbox(environment.tools, "") is not None
        ]

    async def _claim(self, tasks: asyncio.TaskGroup) -> bool:
        config = self._context.config
        usual = all(_is_resumable(environment.agent) for environment in config.environments.values())
        able = self._environments()
        self._claiming = True
        try:
            await self._context.lease.certain()
            claimed = await claims.claim_several(
                self._context.database,
                self._context.lease.incarnation,
                min(self._concurrency - self.running, MOST_AT_ONCE),
                environments=None if len(able) == len(config.environments) else able,
                resumable=usual,
                last=self._last_claims,
            )
            if not self._records.isdisjoint(claim.record.id for claim in claimed):
                # A record that runs here is open again only if this sampler was declared dead; then this raises
                # OwnerLostError.
                await self._context.lease.renew()
        except (StoreError, DiskError) as away:
            log.warning("nothing can be claimed: %s", away)
            self.idle_because = f"the store does not answer: {away}"
            await self._wait(AWAY_S)
            return False
        finally:
            self._claiming = False
        self._claimed_at = time.monotonic()
        for claim in claimed:
            attempt = Attempt(self._context, claim, self._settings())
            self._attempts[attempt] = tasks.create_task(self._attempt(attempt), name=claim.record.id)
        return bool(claimed)

    async def _attempt(self, attempt: Attempt) -> None:
        claim = attempt.claim
        try:
            if not await attempt.run():
                self._unscored[claim.record.id] = _Waiting.first()
        except Exception:
            # The boundary: one episode never ends the others.
            log.exception("the episode %s failed outside of its loop", claim.record.id)
            await self._clear_away(claim)
        finally:
            del self._attempts[attempt]
            self.ended += 1
            self._tick()
            if self._heeds_ends:
                self._changed.set()

    async def _clear_away(self, claim: Claim) -> None:
        """Ends the Record, because it must not stay with an owner that does nothing about it."""
        try:
            await self._context.endings.fail(claim.record, Outcome.LOOP_FAILED, "the sampler failed", free=False)
        except EpisodeExit:
            # It had already ended, so only its score is missing.
            self._unscored[claim.record.id] = _Waiting.first()

    # ---- leaving ----

    async def _drain_further(self) -> None:
        assert self._drain_began is not None
        over = time.monotonic() > self._drain_began + FINISH_WITHIN_S
        self.idle_because = f"draining, {self.running} episodes are left"
        leaving = [attempt for attempt in self._attempts if attempt.resumable]
        await asyncio.gather(*(attempt.leave() for attempt in leaving))
        if over:
            for task in self._attempts.values():
                task.cancel()
            if self._attempts:
                await asyncio.wait(list(self._attempts.values()))
            return
        await self._wait(LOOK_S)

    async def _wait(self, seconds: float, *, heeds_ends: bool = True) -> None:
        """Waits until something changed, but at most this long."""
        self._heeds_ends = heeds_ends
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        self._changed.clear()
        self._tick()

    # ---- scoring again ----

    async def _score_again(self) -> None:
        while True:
            await asyncio.sleep(RESCORE_EVERY_S)
            self._forget_untried()
            try:
                await self._adopt()
                await self._find_strays()
                for record in self._due():
                    await self._rescore(record)
            except (StoreError, DiskError) as away:
                log.warning("nothing is scored again: %s", away)

    async def _see_who_is_back(self) -> None:
        """Withdraws the report of a scorer as soon as its other model answers again, instead of waiting for its next
        score. Records that wait for their score are then tried at once."""
        while self._context.helpers is not None:
            await asyncio.sleep(CHECK_EVERY_S)
            for scorer, model in self.faults.away.items():
                if await self._context.helpers.models.answers(model, patience_s=CHECK_PATIENCE_S):
                    self.faults.worked(scorer)
                    self._unscored = {record: _Waiting.first(0.0) for record in self._unscored}

    def _forget_untried(self) -> None:
        """Code that fails while episodes call it, however long they take, stays reported."""
        at_work = [attempt.claim.task for attempt in self._attempts]
        under_way = {f"agent {task.agent_name}" for task in at_work}
        under_way |= {scoring_of(task.agent_name) for task in at_work}
        under_way |= {f"scorer {task.scorer}" for task in at_work}
        self._context.faults.forget_untried(under_way)

    async def _adopt(self) -> None:
        """Takes ended records of owners that are gone, to score them."""
        while not self.draining and len(self._unscored) < self._concurrency:
            claim = await claims.claim_for_scoring(self._context.database, self._context.lease.incarnation)
            if claim is None:
                return
            self._unscored[claim.record.id] = _Waiting.first(0.0)

    async def _find_strays(self) -> None:
        """Finds records that this sampler owns although no episode here works on them: an answer was lost, or an
        episode was dropped because of a document of an owner that was declared dead. A record must be seen twice,
        because an episode may be about to report its end."""
        held = {} if self._claiming else await self._held_without_episode()
        again = [held[name] for name in self._strays & held.keys()]
        self._strays = set(held)
        for record in again:
            log.warning("no episode here works on %s, which is %s", record.id, record.status)
            if record.status == RecordStatus.RUNNING:
                await self._context.endings.free(record)
            else:
                self._unscored[record.id] = _Waiting.first(0.0)

    async def _stop_cancelled(self) -> None:
        """Stops episodes whose records were cancelled or superseded, because they no longer count."""
        while True:
            await asyncio.sleep(STOP_EVERY_S)
            by_record = {attempt.claim.record.id: attempt for attempt in self._attempts if not attempt.stopped}
            try:
                gone = await cancellations.among(self._context.database, list(by_record)) if by_record else []
            except (StoreError, DiskError) as away:
                log.warning("cancelled episodes run on: %s", away)
                continue
            for record in gone:
                if (task := self._attempts.get(by_record[record])) is not None:
                    log.info("%s is stopped: its record counts no more", record)
                    by_record[record].stopped = True
                    task.cancel()

    async def _held_without_episode(self) -> dict[str, Record]:
        held = await claims.held_by(self._context.database, self._context.lease.incarnation)
        known = self._unscored.keys() | self._records
        return {} if self._claiming else {record.id: record for record in held if record.id not in known}

    def _due(self) -> list[str]:
        now = time.monotonic()
        return [record for record, waiting in self._unscored.items() if waiting.at <= now]

    async def _rescore(self, record: str) -> None:
        waiting = self._unscored.pop(record)
        done = False
        try:
            done = await self._context.endings.score_stored(record)
        except EpisodeExit:
            done = True
        except Exception:
            log.exception("%s cannot be scored", record)
        if not done:
            self._unscored[record] = waiting.longer()


class _Waiting(NamedTuple):
    """When the scoring of a Record is tried again, and the pause before that."""

    at: float
    waited_s: float

    @classmethod
    def first(cls, after_s: float | None = None) -> _Waiting:
        return cls(time.monotonic() + (RESCORE_EVERY_S if after_s is None else after_s), RESCORE_EVERY_S)

    def longer(self) -> _Waiting:
        waited_s = min(2 * self.waited_s, MOST_RESCORE_S)
        return _Waiting(time.monotonic() + waited_s, waited_s)


def _is_resumable(agent: str) -> bool:
    return agent in agent_loops.known() and agent_loops.loop_named(agent).resumable
