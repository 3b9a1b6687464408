"""Serves forks of records, and decisions on replays: keep, exclude, fork.

Invariants:
- A preview states for each fork whether it repairs or branches off, and why, from the same plan as the execution.
- An operation forks a place once, however often it is repeated.
- No fork loses anything. Those that take the seat of a later attempt, and more than one at a time, are disruptive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from agentrl.errors import AgentrlError, RefusedError, UsageError
from agentrl.formatting.amounts import counted
from agentrl.formatting.sentences import few
from agentrl.policies.replay_verdicts import CallResult, Verdict, fault_of
from agentrl.policies.status_tables import ReplayStatus, ToolCallStatus
from agentrl.protocol.data_changes import (
    Done,
    ExcludeRecords,
    ExcludeReplayed,
    ForkRecords,
    KeepReplays,
)
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.queries.operator_changes import Change
from agentrl.queries.record_changes import RecordChanges
from agentrl.steward.fork_plans import ForkPlan, ForkPlanner, ForkRequest
from agentrl.steward.replays import ReplayRunner
from agentrl.steward.settings import StewardSettings
from agentrl.store import forks, replays, tasks
from agentrl.store.database import Database
from agentrl.store.documents import Fork
from agentrl.store.replay_documents import Replay, ReplayedCall
from agentrl.store.replays import RecordedCall

T = TypeVar("T")
_DECIDED = (ReplayStatus.KEPT, ReplayStatus.EXCLUDED, ReplayStatus.FORKED)


@dataclass(frozen=True, slots=True)
class _Planned:
    plans: list[ForkPlan]
    refused: list[str]
    """Why others cannot be forked."""


class ForkChanges:
    def __init__(
        self, database: Database, settings: Callable[[], StewardSettings], runner: ReplayRunner | None
    ) -> None:
        self._database = database
        self._settings = settings
        self._servers = runner.servers if runner is not None else {}
        self._exclusion = RecordChanges(database, settings).table["exclude_records"]
        self.table: dict[str, Change] = {
            "fork_records": Change(self._preview, self._fork),
            "keep_replays": Change(self._preview_keep, self._keep),
            "exclude_replayed": Change(self._preview_exclude, self._exclude),
        }

    # ---- fork ----

    async def _preview(self, args: ForkRecords) -> Effect:
        planned = await self._plan(args)
        plans = planned.plans
        if len(plans) > 1:
            return Effect(displaces=(*_summary(plans), *_ends(plans)), notes=few(planned.refused))
        return Effect(changes=_sentences(plans[0]), displaces=_ends(plans), notes=few(planned.refused))

    async def _plan(self, args: ForkRecords) -> _Planned:
        if problem := args.problem():
            raise UsageError(problem)
        planner = ForkPlanner(self._database, self._settings(), self._servers)
        plans, refused = list[ForkPlan](), list[str]()
        wanted = await self._wanted(args)
        seats: dict[str, str] = {}
        for one in wanted:
            try:
                _refuse_taken_seat(one, seats)
                plans.append(plan := await planner.plan(one))
                if plan.repairs:
                    seats[_seat(plan.base.id)] = plan.base.id
            except AgentrlError as why:
                if len(wanted) == 1:
                    raise
                refused.append(why.message)
        if not plans:
            raise RefusedError(refused[0])
        return _Planned(plans, refused)

    async def _wanted(self, args: ForkRecords) -> list[ForkRequest]:
        if not args.replays:
            return [ForkRequest(args.target, None, args.result, args.message, args.times)]
        chosen = await replays.chosen(self._database, args.replays)
        return [ForkRequest(replay=replay, times=args.times) for replay in chosen]

    async def _fork(self, args: ForkRecords, operation: AskUnit) -> Done:
        if problem := args.problem():
            raise UsageError(problem)
        wanted = await self._wanted(args)
        lines, kinds, made = list[str](), Counter[str](), list[str]()
        seats: dict[str, str] = {}
        for one in wanted:
            try:
                _refuse_taken_seat(one, seats)
                kind, id, line = await self.fork_one(one, args.note, operation)
                if kind == "repair" and one.replay is not None:
                    seats[_seat(one.replay.record)] = one.replay.record
            except AgentrlError as why:
                if len(wanted) == 1:
                    raise
                kind, id, line = "refused", "", why.message
            kinds[kind] += 1
            lines.append(line)
            made += [id] if id else []
        result: dict[str, KnobValue] = {**kinds, **({"forked": made[0]} if len(made) == 1 else {})}
        return Done(few(lines) if len(lines) > 1 else tuple(lines), result)

    async def fork_one(self, wanted: ForkRequest, note: str, operation: AskUnit) -> tuple[str, str, str]:
        """What the fork became: its kind, its id, and a sentence."""
        planner = ForkPlanner(self._database, self._settings(), self._servers)
        place = _by(await planner.place(wanted), operation, note)
        task = await tasks.of_record(self._database, place.base)
        done = await forks.done_before(self._database, task, place)
        if done:
            kind = "repair" if "#" in done else (await tasks.get(self._database, done)).purpose
        else:
            plan = await planner.plan(wanted)
            fork, kind = _by(plan.fork, operation, note), plan.decision.purpose
            if plan.repairs:
                done, kind = await forks.repair(self._database, plan.task, plan.base, fork), "repair"
            else:
                done = await forks.branch(
                    self._database, plan.task, fork, purpose=plan.decision.purpose, query=plan.message
                )
        if wanted.replay is not None:
            fields = {"forked": done, "decision": note}
            await replays.decide(self._database, wanted.replay, ReplayStatus.FORKED, by=operation.id, fields=fields)
        return kind, done, f"{kind}: {done} goes on from {place.base}"

    async def effect_if_fixed(self, calls: Sequence[RecordedCall]) -> Effect:
        """The effect of forking the records of these calls, if the calls work now."""
        planner = ForkPlanner(self._database, self._settings(), self._servers)
        plans = []
        for one in last_attempts(calls, lambda call: call.record):
            fixed = Replay(
                call=one.call.id, record=one.record, task=one.task, turn=one.turn, status=ReplayStatus.JUDGED
            )
            fixed.verdict, fixed.fault = Verdict.FIXED, fault_of(CallResult(one.call.status), Verdict.FIXED)
            fixed.runs = [ReplayedCall(status=ToolCallStatus.OK)]
            with suppress(AgentrlError):
                plans.append(await planner.plan(ForkRequest(replay=fixed)))
        forks, ends = _summary(plans), _ends(plans)
        return Effect(displaces=(*forks, *ends)) if len(plans) > 1 else Effect(changes=forks, displaces=ends)

    # ---- other decisions on replays ----

    async def _preview_keep(self, args: KeepReplays) -> Effect:
        chosen = await self._undecided(args.ids)
        return Effect(changes=(f"{counted(len(chosen), 'replays')}: noted that their records stay as they are",))

    async def _keep(self, args: KeepReplays, operation: AskUnit) -> Done:
        chosen = await self._undecided(args.ids, by=operation.id)
        for replay in chosen:
            fields = {"decision": args.note}
            await replays.decide(self._database, replay, ReplayStatus.KEPT, by=operation.id, fields=fields)
        return Done(result={"kept": len(chosen)})

    async def _preview_exclude(self, args: ExcludeReplayed) -> Effect:
        return await self._exclusion.preview(_exclusion(await self._undecided(args.ids), args.note))

    async def _exclude(self, args: ExcludeReplayed, operation: AskUnit) -> Done:
        chosen = await self._undecided(args.ids, by=operation.id)
        done = await self._exclusion.carry_out(_exclusion(chosen, args.note), operation)
        excluded = await self._database.find("Record", {"status": "excluded", "excluded_by": operation.id})
        mine = {record["_id"] for record in excluded}
        for replay in chosen:
            if replay.record in mine:
                fields = {"decision": args.note}
                await replays.decide(self._database, replay, ReplayStatus.EXCLUDED, by=operation.id, fields=fields)
        return done

    async def _undecided(self, ids: Sequence[str], *, by: str = "") -> list[Replay]:
        """The replays that have a verdict, and no decision except one by this operation."""
        chosen = await replays.chosen(self._database, ids)
        found = [
            one
            for one in chosen
            if one.status == ReplayStatus.JUDGED or (by and one.status in _DECIDED and one.decided_by == by)
        ]
        if not found:
            raise RefusedError(f"{chosen[0].id} is {chosen[0].status}: there is nothing to decide.")
        return found


def last_attempts(those: Sequence[T], record_of: Callable[[T], str]) -> list[T]:
    """The records that are the last attempt at their seat, because a seat is forked once."""
    last: dict[str, int] = {}
    for one in those:
        seat, _, attempt = record_of(one).rpartition(".a")
        last[seat] = max(last.get(seat, 0), int(attempt))
    return [one for one in those if record_of(one) in {f"{seat}.a{attempt}" for seat, attempt in last.items()}]


def _seat(record: str) -> str:
    return record.rpartition(".a")[0]


def _refuse_taken_seat(wanted: ForkRequest, repaired: Mapping[str, str]) -> None:
    """`repaired`: by seat, the record that this operation repairs there."""
    replay = wanted.replay
    if replay is not None and (other := repaired.get(_seat(replay.record))):
        raise RefusedError(f"{replay.id} is not forked: the repair of {other} takes the same seat.")


def _exclusion(chosen: Sequence[Replay], note: str) -> ExcludeRecords:
    return ExcludeRecords(ids=tuple(dict.fromkeys(replay.record for replay in chosen)), note=note)


def _by(fork: Fork, operation: AskUnit, note: str) -> Fork:
    fork.operation, fork.who, fork.note = operation.id, operation.who, note
    return fork


def _sentences(plan: ForkPlan) -> tuple[str, ...]:
    base, fork, decision = plan.base, plan.fork, plan.decision
    turns = fork.turns + bool(fork.call)
    begins = f"turn {turns} of {base.id}"
    trunk, calls = counted(turns, "turns"), counted(plan.calls, "tool calls")
    before = f"{trunk} and {calls} before it" if turns else "nothing before it"
    if plan.rebuilt:
        before += f"; {plan.rebuilt} of the calls {'runs' if plan.rebuilt == 1 else 'run'} again to rebuild the session"
    are, do = ("is", "does") if turns == 1 else ("are", "do")
    context = f"; the {trunk} {are} context and {do} not train in it"
    if plan.repairs:
        return (
            f"repair: a fork takes seat {base.seat} of {plan.task.id}, and goes on with {begins}",
            f"it has {before}",
            f"{base.id} is excluded; the tokens of its {trunk} train once, in the fork",
        )
    if decision.purpose == "branch":
        return (
            f"branch: {decision.times} records go on with {begins}, as a group of their own",
            f"it does not repair, because {decision.why}",
            f"each has {before}{context if turns else ''}",
            f"{base.id} and its group stay as they are",
        )
    goes = "record goes" if decision.times == 1 else "records go"
    return (
        f"probe: {decision.times} {goes} on with {begins}, and nothing of it trains",
        f"it does not repair, because {decision.why}",
        f"each has {before}",
    )


def _ends(plans: Sequence[ForkPlan]) -> tuple[str, ...]:
    return few([f"{plan.superseded} ends: the fork has its seat" for plan in plans if plan.superseded])


def _summary(plans: Sequence[ForkPlan]) -> tuple[str, ...]:
    repairs = [plan for plan in plans if plan.repairs]
    others = Counter((plan.decision.purpose, plan.decision.why) for plan in plans if not plan.repairs)
    sentences = []
    if repairs:
        groups = counted(len({plan.task.id for plan in repairs}), "groups")
        are = "is" if len(repairs) == 1 else "are"
        sentences.append(f"{counted(len(repairs), 'records')} of {groups} {are} repaired: forks take their seats")
    for (purpose, why), count in others.most_common():
        times = next(plan.decision.times for plan in plans if plan.decision.purpose == purpose)
        become = f"become groups of {times} of their own" if purpose == "branch" else "go on without training"
        sentences.append(f"{counted(count, 'forks')} {become}: {why}")
    return tuple(sentences)
