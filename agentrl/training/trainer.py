"""The trainer's loop: look for a batch, lease it, train, commit, publish, checkpoint, evaluate.

Invariants:
- a step is leased before the optimizer runs and committed by one conditional update after it;
- the trainer's state decides what is due (publication, checkpoint, evaluation), not what it just did, so a store that
  was away only delays it;
- a trainer that has lost its lineage or its lease writes nothing more and ends;
- tensors are computed in a thread, one piece of work at a time, so the loop stays responsive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from dataclasses import replace

from agentrl.config import policy_rules
from agentrl.config.run import RunConfig
from agentrl.errors import AgentrlError, DiskError
from agentrl.files.unit_files import UnitFiles
from agentrl.images.processing import Processing
from agentrl.policies.outcomes import longest_group_s
from agentrl.policies.status_tables import Actor, StepStatus
from agentrl.policies.version_tree import VersionTree
from agentrl.store import checkpoints as stored_checkpoints
from agentrl.store import lineages, owners, publications, steps, tasks
from agentrl.store.database import Database, StoreUnavailableError
from agentrl.store.document_ids import step_id
from agentrl.store.documents import DBRecordData, Step
from agentrl.store.steps import LineageClosedError
from agentrl.telemetry.data_plane_metrics import CHECKPOINTS_DAMAGED, WARMUP_UNUSED, Meter
from agentrl.telemetry.learning_metrics import NOT_FINITE, NOTHING_TRAINED, STEPS_WANTED, VALID
from agentrl.tracing import spans, trace_context
from agentrl.training import (
    batch_assembly,
    batch_selection,
    device_turn,
    poison_trials,
    scientific_settings,
    step_reporting,
)
from agentrl.training.batch import Batch
from agentrl.training.batch_dumps import DUMPS, BatchDumps
from agentrl.training.batch_images import with_images
from agentrl.training.batch_selection import Place, Selection
from agentrl.training.computation import computed
from agentrl.training.curve_sinks import RunName
from agentrl.training.curves import Curves, undone_by
from agentrl.training.device_turn import DeviceTurn
from agentrl.training.evaluator import Evaluator, has_held_out_tasks
from agentrl.training.learner import Learner
from agentrl.training.learner_settings import StepResult
from agentrl.training.learning_watch import LearningWatch
from agentrl.training.outputs import Outputs
from agentrl.training.poison_trials import Suspicion
from agentrl.training.ranks import Loader, load_alone
from agentrl.training.resume import Start, take_over
from agentrl.training.trainer_knobs import Knobs, Plan
from agentrl.training.trainer_state import DivergedError, TrainerState, ending
from agentrl.training.waiting import BatchWait, NoBatch, Retrying
from agentrl.unit import Unit

log = logging.getLogger("trainer")

LOOK_EVERY_S = 0.1
WHOLE_LOOK_EVERY_S = 1.0
"""While the number of ready groups stays the same, the trainer does not read them more often."""
PARKED_LOOK_EVERY_S = 1.0
HOLD_LOOK_EVERY_S = 5.0
START_AT_MOST_S = 1800.0
AWAY_AT_MOST_S = 600.0
"""After this time without a store or room on the disk the wait counts as late; the trainer continues to wait."""
MAX_NOT_FINITE = 3


class Trainer:
    def __init__(self, unit: Unit, database: Database, config: RunConfig, load: Loader = load_alone) -> None:
        """`load` makes the learner, which may be one of several ranks."""
        self._load = load
        self._unit = unit
        self._database = database
        self._config = config
        self._run_dir = unit.run_dir
        self._dumps = BatchDumps(unit.run_dir / DUMPS, config.training.dumps)
        self._knobs = Knobs(unit, config)
        self._curves = Curves(config.training.curves, unit.run_dir, RunName(config.name, unit.run), unit.metrics)
        self._evaluator = Evaluator(database, self._evaluated)
        self._watch = LearningWatch(database)
        self._evaluates = has_held_out_tasks(config)
        self._schedule = policy_rules.schedule(config.training)
        self._epochs = {name: environment.epochs for name, environment in config.environments.items()}
        life = f"{unit.name}.{unit.incarnation}"
        self._lease = owners.Lease(database, life, unit=unit.name, role="trainer", run=unit.run)
        self._until_done = Retrying(unit, self._lease, at_most_s=AWAY_AT_MOST_S).until_done
        self._announced_plan: dict[str, object] = {}
        """The plan that was last reported to admission."""
        self._hold, self._hold_checked_at = "", float("-inf")
        self._trial = False
        """True if the trainer holds because most attempts fail, so a few records are tried meanwhile."""
        self._held_since: float | None = None
        """Since when a step has been held back for records under way."""
        self._evaluated_lately = False
        """Remembered, because the store may be away before the work after an evaluation is done."""
        self._meter = Meter(time.monotonic())
        self._waiting: NoBatch | None = None
        self._batch_wait = BatchWait(unit, longest_group_s(float(config.rollout.episode_s)))
        self.state = TrainerState(0)
        self._turn = DeviceTurn(database, life) if config.engines.takes_turns else None
        self._suspicion = Suspicion()
        self._outputs = Outputs(unit, database, config, until_done=self._until_done, kept=lambda: self._knobs.kept)
        self.learner: Learner
        self._lineage = ""
        self._tree = VersionTree()
        self._known: dict[str, DBRecordData] = {}

    async def run(self) -> None:
        """Trains until the data ends, all steps are done, or the unit drains."""
        await self._lease.open()
        try:
            async with asyncio.TaskGroup() as group:
                keeping = group.create_task(self._lease.keep(), name="keep the trainer's lease")
                try:
                    await self._work()
                finally:
                    await self._outputs.close()
                keeping.cancel()
        except ExceptionGroup as several:
            # One error is enough; the runner knows its exit code.
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
            why = await self._until_done(self._round)
            self._unit.tick()
        await self._finish(why)

    async def _round(self) -> str:
        """One pass of the loop. Returns why the run is complete; empty if it is not."""
        if self._unit.draining:
            return ""
        plan = self._knobs.take()
        for name, value in self._meter.read(time.monotonic()).items():
            self._unit.metric(name, value)
        if wanted := self._config.training.steps:
            self._unit.metric(STEPS_WANTED.name, wanted)
            if self.state.committed >= wanted:
                # Checked before admission gets the plan, because a complete run must not sample anything.
                return f"all {wanted} steps are done"
        await self._do_what_is_due(plan)
        if self._unit.paused:
            # Paused only after the due work, so that trained weights are served and saved meanwhile.
            await self._park()
            return ""
        await self._check_for_a_hold()
        if self._waiting is not None and await self._still_waiting(self._waiting, plan):
            await self._wait(self._waiting.why)
            return ""
        look, self._waiting = await self._look(plan), None
        if (look.decision.stale_groups or look.decision.act == "bury") and not await lineages.is_open(
            self._database, self._lineage
        ):
            # This process may have been stopped for a while, and another trainer may own these tasks now.
            raise steps.closed(self._lineage)
        for name in look.decision.stale_groups:
            task = look.ready[name].task
            await tasks.next_round(self._database, task, Actor.TRAINER, tasks.STALE, final_reason=tasks.STALE)
        match look.decision.act:
            case "end":
                return look.decision.why
            case "bury":
                await poison_trials.bury(self._database, look.decision.poison, look.decision.why)
                self._suspicion = await poison_trials.recall(self._database)
            case "wait":
                if look.decision.held:
                    self._held_since = self._held_since or time.monotonic()
                else:
                    self._waiting = NoBatch(plan, self._hold, len(look.ready), time.monotonic(), look.decision.why)
                await self._wait(look.decision.why)
            case "step":
                self._held_since = None
                self._wait_is_over()
                await device_turn.begin(self._turn, self._unit, self.learner)
                with spans.span("step", root=trace_context.new(), agentrl__lineage=self._lineage) as span:
                    await self._step(look, plan)
                    span.set(agentrl__step=self.state.step, agentrl__version=self.state.version)
        return ""

    async def _still_waiting(self, waiting: NoBatch, plan: Plan) -> bool:
        """Whether another look would find the same as the last one. A count costs a fraction of a look."""
        if (waiting.plan, waiting.hold) != (plan, self._hold):
            return False
        if time.monotonic() - waiting.looked_at > WHOLE_LOOK_EVERY_S:
            return False
        return await steps.count_ready(self._database) == waiting.ready

    async def _look(self, plan: Plan) -> Selection:
        place = self._place(plan)
        return await batch_selection.look(self._database, place, plan, self._hold, self._suspicion, self._known)

    async def _park(self) -> None:
        """Waits while the unit is paused; evaluations under way continue."""
        await device_turn.end(self._turn, self._unit, self.learner)
        parked = asyncio.create_task(self._unit.park_while_paused_async(), name="park")
        try:
            while not parked.done():
                await self._follow_evaluations()
                await asyncio.wait([parked], timeout=PARKED_LOOK_EVERY_S)
        finally:
            parked.cancel()
            await asyncio.wait([parked])

    async def _wait(self, why: str) -> None:
        await device_turn.end(self._turn, self._unit, self.learner)
        if self._batch_wait.begin():
            self._meter.set(0, 1, time.monotonic())
        self._unit.status(f"version {self.state.version}, step {self.state.step}: {why}")
        await self._unit.sleep_async(LOOK_EVERY_S)

    def _wait_is_over(self) -> None:
        self._batch_wait.end()
        self._meter.set(1, 1, time.monotonic())

    # ---- one step ----

    async def _step(self, look: Selection, plan: Plan) -> None:
        chosen = look.decision
        settings = scientific_settings.settings_of(plan, [look.ready[group.task].task for group in chosen.groups])
        if changed := scientific_settings.change(self._outputs.settings, settings):
            await self._outputs.keep_weights_before(changed)
        self._outputs.settings |= settings
        self.state.step += 1
        self._unit.status(f"version {self.state.version}, step {self.state.step}: {chosen.why}")
        step = Step(
            id=step_id(self._lineage, self.state.step),
            lineage=self._lineage,
            step=self.state.step,
            base_version=self.state.version,
            tasks=[group.task for group in chosen.groups],
            filtered=list(chosen.filtered),
            records=[record.record for group in chosen.groups for record in group.records],
            intervened=sum(record.intervened for group in chosen.groups for record in group.records),
            bounds={name: plan.freshness.of(name).oldest for name in {group.environment for group in chosen.groups}},
        )
        # A lease whose confirmation was lost is released before the next one is taken.
        await steps.release_of(self._database, self._lineage, "its trainer did not receive the confirmation")
        leased = await steps.lease(self._database, step)
        if leased is None:
            return
        began = time.monotonic()
        try:
            assembled = await batch_assembly.read_batch(self._database, leased, look, plan, self._tree)
            assembled = await with_images(self._database, assembled, self._processing())
        except AgentrlError as broken:
            await steps.release(self._database, leased.id, broken.message)
            raise
        result = await self._train(assembled.batch, plan)
        if not result.applied:
            await self._quarantine(leased, result)
            return
        records = [trajectory.record for trajectory in assembled.batch.trajectories]
        seconds = time.monotonic() - began
        metrics = step_reporting.step_metrics(
            assembled, result, leased, look, seconds=seconds, moved=self.state.trained
        )
        metrics |= self._watch.evaluation
        metrics = await step_reporting.with_surroundings(self._database, self._config, metrics, records)
        await self._commit(leased, metrics, records)
        self._suspicion.cleared(leased.tasks)
        self._account_for(leased, assembled.batch.trained_tokens > 0, metrics)
        self._watch.stepped(leased.step, metrics)
        await self._report_learning()

    def _processing(self) -> Processing | None:
        """How images are prepared for the model."""
        how, wanted = self.learner.images.how, self._config.model
        return how if how is None or wanted is None else how.limited(wanted.images.max_pixels)

    async def _train(self, batch: Batch, plan: Plan) -> StepResult:
        self._unit.status(f"version {self.state.version}: trains step {batch.step}, {batch.trained_tokens} tokens")
        plan = replace(plan, learning_rate=plan.learning_rate * self._schedule.share(batch.step))
        after, self.state.trained_step = self.state.trained_step, batch.step
        try:
            await asyncio.to_thread(self._dumps.write, batch, plan, after=after)
        except DiskError as full:
            log.error("%s The step trains without it.", full.message)

        def train() -> StepResult:
            return self.learner.train(
                batch, plan.loss, learning_rate=plan.learning_rate, optimizer_steps=plan.optimizer_steps
            )

        return await computed(self._unit, "step", self.state.step, train)

    async def _commit(self, leased: Step, metrics: dict[str, float], records: list[str]) -> None:
        """Commits a step. The weights have changed, so the commit is repeated until its result is known."""

        async def commit() -> None:
            if await steps.commit(self._database, leased.id, metrics, records=records):
                return
            document = await self._database.find_one("Step", {"_id": leased.id}, projection=["status"])
            if document is None or document["status"] != StepStatus.COMMITTED:
                raise LineageClosedError(
                    f"Another trainer has taken {leased.id}; what this one trained does not count."
                )
            # The confirmation of an earlier commit was lost; only this trainer commits under this lineage.
            await steps.follow(self._database)

        await self._until_done(commit)

    async def _quarantine(self, leased: Step, result: StepResult) -> None:
        """Gives up a batch whose loss was not finite: the weights are unchanged, and the batch is never trained
        again."""
        reason = f"poison: loss {result.metrics['loss']}, gradient {result.metrics['gradient_norm']}"
        log.error("step %d is skipped, its tasks are dead (%s)", leased.step, reason)
        await steps.release(self._database, leased.id, reason)
        await poison_trials.bury(self._database, leased.tasks, reason)
        self.state.not_finite += 1
        self._unit.metric(NOT_FINITE.name, self.state.not_finite)
        if self.state.not_finite >= MAX_NOT_FINITE:
            raise DivergedError(
                f"{MAX_NOT_FINITE} batches in a row gave a loss that is not finite ({reason}).",
                hint="Go back to a checkpoint, with a lower learning rate.",
            )

    def _account_for(self, step: Step, trained: bool, metrics: dict[str, float]) -> None:
        now = self.state
        now.committed += 1
        now.steps_published += 1
        now.not_finite = 0
        self._unit.metric(NOT_FINITE.name, 0)
        now.trained |= trained
        now.effective += trained
        now.unsaved += trained
        self._unit.metric(NOTHING_TRAINED.name, now.useless_steps)
        self._curves.step(now.step, metrics)
        step_reporting.to_unit(self._unit, metrics, step)

    # ---- what is due ----

    async def _do_what_is_due(self, plan: Plan, *, last: bool = False) -> None:
        now = self.state
        wanted = plan.for_admission(self._hold, trial=self._trial)
        if wanted != self._announced_plan:
            if not await lineages.report_plan(self._database, self._lineage, wanted):
                raise steps.closed(self._lineage)
            self._announced_plan = wanted
        self._outputs.check()
        if now.trained and (last or now.steps_published >= plan.publish_every):
            await self._outputs.publish(now.version)
        if last:
            await self._outputs.settle()
        evaluates = self._evaluates and 0 < plan.evaluate_every <= now.since_evaluation
        # Evaluated weights are also saved, so that the run can go back to its best evaluation.
        due = evaluates or now.step - now.checkpoint >= plan.checkpoint_every
        if now.unsaved and (last or (due and now.step != now.tried_checkpoint)):
            await self._outputs.checkpoint(last=last)
        if evaluates:
            await self._evaluate()
        await self._follow_evaluations()

    async def _evaluate(self) -> None:
        await self._outputs.settle()
        await self._evaluator.want(self.state.version)
        self.state.since_evaluation = 0

    async def _follow_evaluations(self) -> None:
        await self._evaluator.follow()
        if self._evaluated_lately:
            await self._watch.recall()
            await stored_checkpoints.keep_best(self._database)
            await self._report_learning()
            self._evaluated_lately = False

    async def _wait_for_evaluations(self) -> None:
        await self._evaluator.wait_for_all(self._unit)
        await self._follow_evaluations()

    async def _report_learning(self) -> None:
        self._unit.metrics(self._watch.evaluation | await self._watch.metrics())

    def _evaluated(self, version: int, numbers: dict[str, float]) -> None:
        self._evaluated_lately = True
        self._curves.evaluation(version, numbers)

    # ---- beginning and end ----

    async def _start(self) -> None:
        start = await self._until_done(self._take_over)
        if self._config.training.reference == "initial":
            await self._until_done(lambda: self._outputs.keep_reference(new_run=start.new_run))
        # After the first publication the parent is that version, because a second root of the version tree would have
        # no age.
        await self._until_done(lambda: self._outputs.publish(self.state.version or start.parent))
        await self._outputs.settle()
        first = self.state.version
        await self._until_done(lambda: lineages.set_first_version(self._database, self._lineage, first))
        if start.warmed_up:
            await self._until_done(self._outputs.checkpoint)
        await self._until_done(self._evaluator.adopt)
        if self._evaluates and self._config.evaluation.every and (start.parent is None or start.rolled_back):
            # The run is compared with its initial weights at the end; a rollback is evaluated at once.
            await self._until_done(self._evaluate)

    async def _take_over(self) -> Start:
        start = await take_over(
            self._database,
            self._config,
            self._run_dir,
            self._lease.incarnation,
            report=self._unit.status,
            on_progress=self._unit.tick,
            load=self._load,
            files=UnitFiles.of_this_unit(self._unit.status),
        )
        self._unit.metric(WARMUP_UNUSED.name, start.warmup_unused)
        self._unit.metric(CHECKPOINTS_DAMAGED.name, start.damaged)
        self._set_state(start, await publications.parents(self._database))
        self._curves.rolled_back(start.step, await undone_by(self._database, self._lineage), self._lineage)
        self._suspicion = await poison_trials.recall(self._database)
        await self._watch.recall()
        # The trainer before this one may have died after an evaluation, before it did this.
        await stored_checkpoints.keep_best(self._database)
        await self._report_learning()
        committed = {"status": StepStatus.COMMITTED}
        self.state.committed = await self._database.count("Step", committed)
        self.state.effective = await self._database.count("Step", committed | {"records.0": {"$exists": True}})
        self._unit.metric(NOTHING_TRAINED.name, self.state.useless_steps)
        return start

    def _set_state(self, start: Start, parents: dict[int, int | None]) -> None:
        self.learner = start.learner
        self._lineage = start.lineage.id
        self._tree = VersionTree(parents)
        self.state = TrainerState(start.step, checkpoint=start.step, trained_step=start.step)
        self._outputs.begin(start, self.state, self._tree)
        self._dumps.forget_after(start.step)

    async def _finish(self, why: str) -> None:
        """Saves and publishes at a planned end, so that nothing that was trained is lost."""
        self._wait_is_over()
        plan = self._knobs.take()
        if why:
            why = ending(why, self.state)
            # Records admitted from now on would not be trained.
            self._hold, self._trial = f"complete: {why}", False
        await self._until_done(lambda: self._do_what_is_due(plan, last=True))
        await device_turn.end(self._turn, self._unit, self.learner)
        if why and not self._unit.draining:
            log.info("complete: %s", why)
            self._unit.status(f"complete but for evaluations: {why}")
            if self._evaluates:
                await self._until_done(lambda: self._evaluator.want(self.state.version))
            await self._until_done(self._wait_for_evaluations)
        self._unit.status(f"{'complete: ' + why if why else 'drained'}; version {self.state.version}")

    async def _stay_frozen(self) -> None:
        """Publishes and evaluates the initial weights, and trains nothing."""
        version = self.state.version
        self._unit.status(f"frozen at version {version}")
        await self._until_done(lambda: self._do_what_is_due(self._knobs.take()))
        await self._until_done(self._wait_for_evaluations)
        self._unit.status(f"frozen at version {version}; nothing is trained")

    # ---- helpers ----

    def _place(self, plan: Plan) -> Place:
        now = self.state
        waited = 0.0 if self._held_since is None else time.monotonic() - self._held_since
        publishes = now.steps_published + 1 >= plan.publish_every
        most = self._config.training.max_trained_count
        return Place(self._tree, now.version, publishes, self._epochs, waited, most)

    async def _check_for_a_hold(self) -> None:
        if time.monotonic() - self._hold_checked_at >= HOLD_LOOK_EVERY_S:
            self._hold_checked_at = time.monotonic()
            found = await batch_selection.validity(self._database)
            self._hold, self._trial = found.hold, bool(found.hold)
            self._unit.metric(VALID.name, math.nan if found.share is None else found.share)
