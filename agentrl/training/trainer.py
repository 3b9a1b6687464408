"""The trainer's loop: look for a batch, lease it, train, commit, publish, checkpoint, evaluate.

Invariants: a Step is leased before the optimizer runs and committed by one conditional update after it; whatever is due
(publication, checkpoint, evaluation) follows from where the trainer stands and not from what it just did, so a store
that was away only delays it; a trainer whose lineage or lease is lost writes nothing any more and ends. Tensors are
computed in a thread, one piece of work at a time; the loop stays responsive meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import TypeVar

from agentrl.config.run import RunConfig
from agentrl.engines.manifest import Manifest
from agentrl.errors import AgentrlError, DiskError
from agentrl.policies.outcomes import longest_group_s
from agentrl.policies.status_tables import Actor, StepStatus
from agentrl.policies.version_tree import VersionTree
from agentrl.store import checkpoints as stored_checkpoints
from agentrl.store import lineages, owners, publications, steps, tasks
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.documents import CheckpointFile, DBRecordData, Publication, Step, step_id
from agentrl.store.steps import LineageClosedError
from agentrl.telemetry.learning import NOT_FINITE, NOTHING_TRAINED, STEPS_WANTED, VALID
from agentrl.telemetry.services import WARMUP_UNUSED, Meter
from agentrl.training import (
    batch_dumps,
    batch_selection,
    checkpoints,
    initial_model,
    poisoned_groups,
    reading,
    reference,
    retention,
    step_reporting,
    telling,
    weight_files,
)
from agentrl.training.batch import Batch
from agentrl.training.batch_dumps import DUMPS, Recorder
from agentrl.training.batch_selection import Look, Place
from agentrl.training.checkpoints import Progress
from agentrl.training.curves import Curves
from agentrl.training.evaluator import Evaluator, over_all
from agentrl.training.learner import Learner, StepResult
from agentrl.training.patience import Patience
from agentrl.training.poisoned_groups import Suspicion
from agentrl.training.resume import CHECKPOINTS, Start, take_over
from agentrl.training.trainer_knobs import Knobs, Plan
from agentrl.training.trainer_state import DivergedError, Standing, ending
from agentrl.training.waiting import BatchWait
from agentrl.unit import Unit

log = logging.getLogger("trainer")

LOOK_EVERY_S = 0.1
PARKED_LOOK_EVERY_S = 1.0
HOLD_LOOK_EVERY_S = 5.0
START_AT_MOST_S = 1800.0
COMPUTE_AT_MOST_S = 900.0
"""Between two micro-batches; a step as a whole may take any number of them."""
AWAY_AT_MOST_S = 600.0
"""Longer than that without a store or room on the disk is worth a question; the trainer goes on waiting."""
NOT_FINITE_AT_MOST = 3

T = TypeVar("T")


class Trainer:
    def __init__(self, unit: Unit, database: Database, config: RunConfig) -> None:
        self._unit = unit
        self._database = database
        self._config = config
        self._run_dir = unit.run_dir
        self._recorder = Recorder(unit.run_dir / DUMPS, config.training.dumps)
        self._knobs = Knobs(unit, config)
        self._curves = Curves(unit.run_dir / "tensorboard")
        self._evaluator = Evaluator(database, self._evaluated)
        self._evaluates = initial_model.has_held_out_tasks(config)
        self._epochs = {name: environment.epochs for name, environment in config.environments.items()}
        life = f"{unit.name}.{unit.incarnation}"
        self._lease = owners.Lease(database, life, unit=unit.name, role="trainer", run=unit.run)
        self._lasting = Patience(unit, self._lease, at_most_s=AWAY_AT_MOST_S).lasting
        self._told: dict[str, object] = {}
        self._hold, self._hold_looked_at = "", float("-inf")
        self._trial = False
        """It holds because most attempts fail, so a few are tried meanwhile."""
        self._held_since: float | None = None
        """Since when a Step has been held back for records under way."""
        self._evaluation: dict[str, float] = {}
        """The last that is known."""
        self._meter = Meter(time.monotonic())
        self._batch_wait = BatchWait(unit, longest_group_s(float(config.rollout.episode_s)))
        self.standing = Standing(0)
        self._suspicion = Suspicion()
        self._unannounced: Publication | None = None
        """A number that is taken and not known to be announced: whatever was in the way, it is gone on with."""
        self._written: Manifest | None = None
        """Its files, once they are complete: engines may be reading them."""
        self.learner: Learner
        self._lineage = ""
        self._tree = VersionTree()
        self._probes: list[list[int]] = []
        self._known: dict[str, DBRecordData] = {}

    async def run(self) -> None:
        """Until the data is at its end, the steps are done, or the unit drains."""
        await self._lease.open()
        try:
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(self._lease.keep(), name="keep the trainer's lease")
                await self._work()
                keeping.cancel()
        except ExceptionGroup as several:
            # One reason is enough, and the runner knows how to exit for it.
            raise several.exceptions[0] from several
        finally:
            self._curves.close()
        with contextlib.suppress(StoreUnavailableError):
            await self._lease.close()

    # ---- the loop ----

    async def _work(self) -> None:
        with self._unit.phase("starting", at_most_s=START_AT_MOST_S):
            await self._start()
        self._unit.ready()
        if self._config.training.frozen:
            await self._stay_frozen()
            return
        why = ""
        while not why and not self._unit.draining:
            why = await self._lasting(self._round)
            self._unit.tick()
        await self._finish(why)

    async def _round(self) -> str:
        """One look at everything. Why the run is complete, if it is."""
        if self._unit.draining:
            return ""
        plan = self._knobs.take()
        for name, value in self._meter.read(time.monotonic()).items():
            self._unit.metric(name, value)
        if wanted := self._config.training.steps:
            self._unit.metric(STEPS_WANTED.name, wanted)
            if self.standing.committed >= wanted:
                # Before admission is told anything: of a run that goes on after its end nothing is to be sampled.
                return f"all {wanted} steps are done"
        await self._do_what_is_due(plan)
        if self._unit.paused:
            # Behind what is due, so that what was trained is served and saved meanwhile.
            await self._park()
            return ""
        await self._ask_for_a_hold()
        look = await self._look(plan)
        for name in look.decision.stale_groups:
            task = look.ready[name].task
            await tasks.next_round(self._database, task, Actor.TRAINER, tasks.STALE, final_reason=tasks.STALE)
        match look.decision.act:
            case "end":
                return look.decision.why
            case "bury":
                await poisoned_groups.bury(self._database, look.decision.poison, look.decision.why)
                self._suspicion = await poisoned_groups.recall(self._database)
            case "wait":
                if look.decision.held:
                    self._held_since = self._held_since or time.monotonic()
                await self._wait(look.decision.why)
            case "step":
                self._held_since = None
                self._wait_is_over()
                await self._step(look, plan)
        return ""

    async def _look(self, plan: Plan) -> Look:
        place = self._place(plan)
        return await batch_selection.look(self._database, place, plan, self._hold, self._suspicion, self._known)

    async def _park(self) -> None:
        """Begin nothing; evaluations that are under way go on."""
        parked = asyncio.create_task(self._unit.park_while_paused_async(), name="park")
        try:
            while not parked.done():
                await self._evaluator.follow()
                await asyncio.wait([parked], timeout=PARKED_LOOK_EVERY_S)
        finally:
            parked.cancel()
            await asyncio.wait([parked])

    async def _wait(self, why: str) -> None:
        """The steward tells what is missing."""
        if self._batch_wait.begin():
            self._meter.set(0, 1, time.monotonic())
        self._unit.status(f"version {self.standing.version}, step {self.standing.step}: {why}")
        await self._unit.sleep_async(LOOK_EVERY_S)

    def _wait_is_over(self) -> None:
        self._batch_wait.end()
        self._meter.set(1, 1, time.monotonic())

    # ---- one step ----

    async def _step(self, look: Look, plan: Plan) -> None:
        chosen = look.decision
        self.standing.step += 1
        self._unit.status(f"version {self.standing.version}, step {self.standing.step}: {chosen.why}")
        wanted = Step(
            id=step_id(self._lineage, self.standing.step),
            lineage=self._lineage,
            step=self.standing.step,
            base_version=self.standing.version,
            tasks=[group.task for group in chosen.groups],
            filtered=list(chosen.filtered),
            records=[record.record for group in chosen.groups for record in group.records],
            bounds={name: plan.freshness.of(name).oldest for name in {group.environment for group in chosen.groups}},
        )
        # A lease whose answer was lost is given back before the next one is taken.
        await steps.release_of(self._database, self._lineage, "its trainer did not hear that it had it")
        leased = await steps.lease(self._database, wanted)
        if leased is None:
            return
        began = time.monotonic()
        try:
            made = await reading.batch_of(self._database, leased, look, plan, self._tree)
        except AgentrlError as broken:
            await steps.release(self._database, leased.id, broken.message)
            raise
        result = await self._train(made.batch, plan)
        if not result.applied:
            await self._quarantine(leased, result)
            return
        records = [one.record for one in made.batch.trajectories]
        told = step_reporting.of_step(
            made, result, leased, look, seconds=time.monotonic() - began, moved=self.standing.trained
        )
        metrics = told | self._evaluation
        metrics = await telling.with_surroundings(self._database, self._config, metrics, records)
        await self._commit(leased, metrics, records)
        self._suspicion.cleared(leased.tasks)
        self._account_for(leased, made.batch.trained_tokens > 0, metrics)

    async def _train(self, batch: Batch, plan: Plan) -> StepResult:
        self._unit.status(f"version {self.standing.version}: trains step {batch.step}, {batch.trained_tokens} tokens")
        after, self.standing.trained_step = self.standing.trained_step, batch.step
        recorded = plan.recorded(batch, after)
        try:
            await asyncio.to_thread(self._recorder.write, recorded)
        except DiskError as full:
            log.error("%s It trains without that.", full.message)
        return await self._computed("step", batch_dumps.train, self.learner, recorded)

    async def _commit(self, leased: Step, metrics: dict[str, float], records: list[str]) -> None:
        """The weights have moved: the answer has to be known, however often it takes to ask."""

        async def commit() -> None:
            if await steps.commit(self._database, leased.id, metrics, records=records):
                return
            found = await self._database.find_one("Step", {"_id": leased.id}, projection=["status"])
            if found is None or found["status"] != StepStatus.COMMITTED:
                raise LineageClosedError(f"{leased.id} was taken from this trainer; what it trained does not count.")
            # An earlier answer was lost on its way; only this trainer commits under this lineage.
            await steps.follow(self._database)

        await self._lasting(commit)

    async def _quarantine(self, leased: Step, result: StepResult) -> None:
        """The weights are as they were. The batch does not come back."""
        reason = f"poison: loss {result.metrics['loss']}, gradient {result.metrics['gradient_norm']}"
        log.error("step %d is skipped, its tasks are dead (%s)", leased.step, reason)
        await steps.release(self._database, leased.id, reason)
        await poisoned_groups.bury(self._database, leased.tasks, reason)
        self.standing.not_finite += 1
        self._unit.metric(NOT_FINITE.name, self.standing.not_finite)
        if self.standing.not_finite >= NOT_FINITE_AT_MOST:
            raise DivergedError(
                f"{NOT_FINITE_AT_MOST} batches in a row gave a loss that is not finite ({reason}).",
                hint="Go back to a checkpoint, with a lower learning rate.",
            )

    def _account_for(self, step: Step, trained: bool, metrics: dict[str, float]) -> None:
        now = self.standing
        now.committed += 1
        now.steps_published += 1
        now.not_finite = 0
        self._unit.metric(NOT_FINITE.name, 0)
        now.trained |= trained
        now.taught += trained
        self._unit.metric(NOTHING_TRAINED.name, now.for_nothing)
        self._curves.add(now.step, metrics)
        step_reporting.to_unit(self._unit, metrics, step)

    # ---- what is due ----

    async def _do_what_is_due(self, plan: Plan, *, last: bool = False) -> None:
        now = self.standing
        told = plan.told(self._hold, trial=self._trial)
        if told != self._told:
            if not await lineages.tell_plan(self._database, self._lineage, told):
                raise steps.closed(self._lineage)
            self._told = told
        if self._unannounced or (now.trained and (last or now.steps_published >= plan.publish_every)):
            await self._publish(now.version)
        behind = now.step - now.checkpoint
        if behind and (last or (now.step != now.tried_checkpoint and behind >= plan.checkpoint_every)):
            await self._checkpoint(last=last)
        if self._evaluates and plan.evaluate_every and now.since_evaluation >= plan.evaluate_every:
            await self._evaluate()
        await self._evaluator.follow()

    async def _publish(self, parent: int | None) -> None:
        if self._unannounced is None:
            self._unannounced = await publications.take_number(
                self._database, parent=parent, lineage=self._lineage, step=self.standing.step
            )
        taken = self._unannounced
        self._unit.status(f"writes version {taken.id}")
        if self._written is None:
            self._written = await self._computed(
                "publication", weight_files.write_weights, self._run_dir, taken.id, self.learner, self._probes
            )
        # A trainer that was replaced and does not know should not serve its weights to anybody.
        if not await lineages.is_open(self._database, self._lineage) or not await publications.announce(
            self._database, taken.id, self._lineage, weight_files.as_document(self._written)
        ):
            raise steps.closed(self._lineage)
        self._unannounced = self._written = None
        self._tree.add(taken.id, parent)
        now = self.standing
        now.version, now.trained, now.steps_published = taken.id, False, 0
        now.since_evaluation += 1
        self._unit.weights = taken.id
        await retention.tidy_weights(self._database, self._run_dir, taken.id, keep=self._knobs.kept.versions)

    async def _checkpoint(self, *, last: bool = False) -> None:
        now = self.standing
        name = checkpoints.name_of(now.step, self._lineage)
        document = await stored_checkpoints.begin(
            self._database, step=now.step, lineage=self._lineage, version=now.version, path=f"{CHECKPOINTS}/{name}"
        )
        progress = Progress(step=now.step, version=now.version, lineage=self._lineage)
        self._unit.status(f"writes checkpoint {name}")
        try:
            target = self._run_dir / document.path
            files = await self._computed("checkpoint", checkpoints.write_checkpoint, target, self.learner, progress)
        except DiskError as full:
            if last:
                raise
            now.tried_checkpoint = now.step
            # Training goes on: what it would lose is no more than it has not saved yet.
            log.error("%s It is tried again after the next step.", full.message)
            self._unit.status(f"no checkpoint: {full.message}")
            return
        facts = {file: CheckpointFile(fact.bytes, fact.hash) for file, fact in files.items()}
        if not await stored_checkpoints.complete(self._database, document.id, facts):
            raise steps.closed(self._lineage)
        now.checkpoint = now.step
        await retention.tidy_checkpoints(self._database, self._run_dir, keep=self._knobs.kept.checkpoints)

    async def _evaluate(self) -> None:
        await self._evaluator.want(self.standing.version)
        self.standing.since_evaluation = 0

    def _evaluated(self, version: int, numbers: dict[str, float]) -> None:
        self._curves.add(version, numbers, prefix="evaluation")
        self._evaluation = over_all(numbers) or self._evaluation
        for name, value in self._evaluation.items():
            self._unit.metric(name, value)

    # ---- beginning and end ----

    async def _start(self) -> None:
        start = await self._lasting(self._take_over)
        if self._config.training.reference == "initial":
            await self._lasting(lambda: self._keep_reference(anew=start.anew))
        # Its own version, once it has one: a second root of the tree would have no age to the first.
        await self._lasting(lambda: self._publish(self.standing.version or start.parent))
        first = self.standing.version
        await self._lasting(lambda: lineages.set_first_version(self._database, self._lineage, first))
        if start.warmed_up:
            await self._lasting(self._checkpoint)
        await self._lasting(self._evaluator.adopt)
        if self._evaluates and self._config.evaluation.every and start.parent is None:
            # What the run begins with is what it is compared with at the end.
            await self._lasting(self._evaluate)

    async def _take_over(self) -> Start:
        say, tick, owner = self._unit.status, self._unit.tick, self._lease.incarnation
        start = await take_over(self._database, self._config, self._run_dir, owner, say=say, on_progress=tick)
        self._unit.metric(WARMUP_UNUSED.name, start.warmup_unused)
        self._stand_at(start, await publications.parents(self._database))
        self._suspicion = await poisoned_groups.recall(self._database)
        committed = {"status": StepStatus.COMMITTED}
        self.standing.committed = await self._database.count("Step", committed)
        self.standing.taught = await self._database.count("Step", committed | {"records.0": {"$exists": True}})
        self._unit.metric(NOTHING_TRAINED.name, self.standing.for_nothing)
        return start

    async def _keep_reference(self, *, anew: bool) -> None:
        # One that was replaced and does not know would write over what its successor is compared with.
        if not await lineages.is_open(self._database, self._lineage):
            raise steps.closed(self._lineage)
        await asyncio.to_thread(reference.keep, self._run_dir, self.learner, anew=anew)

    def _stand_at(self, start: Start, parents: dict[int, int | None]) -> None:
        self.learner = start.learner
        self._lineage = start.lineage.id
        self._probes = start.probes
        self._tree = VersionTree(parents)
        self.standing = Standing(start.step, checkpoint=start.step, trained_step=start.step)
        self._recorder.forget_after(start.step)

    async def _finish(self, why: str) -> None:
        """Nothing that was trained is lost by a planned end."""
        self._wait_is_over()
        plan = self._knobs.take()
        if why:
            why = ending(why, self.standing)
            # What would be admitted from here on, nobody would train.
            self._hold, self._trial = f"complete: {why}", False
        await self._lasting(lambda: self._do_what_is_due(plan, last=True))
        if why and not self._unit.draining:
            log.info("complete: %s", why)
            self._unit.status(f"complete but for evaluations: {why}")
            if self._evaluates:
                await self._lasting(lambda: self._evaluator.want(self.standing.version))
            await self._lasting(lambda: self._evaluator.see_through(self._unit))
        self._unit.status(f"{'complete: ' + why if why else 'drained'}; version {self.standing.version}")

    async def _stay_frozen(self) -> None:
        """What the run begins with is published, and evaluated; that is all there is to do."""
        version = self.standing.version
        self._unit.status(f"frozen at version {version}")
        await self._lasting(lambda: self._do_what_is_due(self._knobs.take()))
        await self._lasting(lambda: self._evaluator.see_through(self._unit))
        self._unit.status(f"frozen at version {version}; nothing is trained")

    # ---- small things ----

    def _place(self, plan: Plan) -> Place:
        now = self.standing
        waited = 0.0 if self._held_since is None else time.monotonic() - self._held_since
        publishes = now.steps_published + 1 >= plan.publish_every
        most = self._config.training.max_trained_count
        return Place(self._tree, now.version, publishes, self._epochs, waited, most)

    async def _ask_for_a_hold(self) -> None:
        if time.monotonic() - self._hold_looked_at >= HOLD_LOOK_EVERY_S:
            self._hold_looked_at = time.monotonic()
            found = await batch_selection.validity(self._database)
            self._hold, self._trial = found.hold, bool(found.hold)
            self._unit.metric(VALID.name, math.nan if found.share is None else found.share)

    async def _computed(self, phase: str, work: Callable[..., T], *arguments: object) -> T:
        with self._unit.phase(phase, at_most_s=COMPUTE_AT_MOST_S):
            return await asyncio.to_thread(work, *arguments)
