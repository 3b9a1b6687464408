"""Queues, holds back and continues replays of tool calls for operators.

Invariants:
- A preview names everything that would run, from the same plan as the execution.
- A tool with effects outside of its session runs only if the operator allowed it by name.
- An operation queues its replays once, and is under way until each has ended or is stopped.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from agentrl.errors import AgentrlError, RefusedError, UnavailableError
from agentrl.formatting.amounts import counted
from agentrl.formatting.sentences import few
from agentrl.policies.replay_verdicts import Verdict
from agentrl.policies.status_tables import ReplayStatus
from agentrl.protocol.data_changes import (
    ContinueReplays,
    Done,
    ReplayCalls,
    StopReplays,
)
from agentrl.protocol.data_commands import ListRows
from agentrl.protocol.effects import Effect
from agentrl.protocol.knob import KnobValue
from agentrl.protocol.messages.served_commands import AskUnit
from agentrl.queries import fork_changes, pages
from agentrl.queries.fork_changes import ForkChanges
from agentrl.queries.operator_changes import Change
from agentrl.steward.fork_plans import ForkRequest
from agentrl.steward.replay_plans import ReplayPlan
from agentrl.steward.replays import ReplayRunner, then_of
from agentrl.store import replays
from agentrl.store.database import Database
from agentrl.store.replay_documents import Replay

SHOWN = 5
MOST_LINES = 50
OPEN = (ReplayStatus.QUEUED, ReplayStatus.PREPARING, ReplayStatus.REPLAYING)


@dataclass(frozen=True, slots=True)
class _Planned:
    plans: list[ReplayPlan]
    refused: list[str]
    """Why calls that match the filter cannot be replayed."""


class ReplayChanges:
    def __init__(self, database: Database, runner: ReplayRunner | None, forks: ForkChanges) -> None:
        self._database = database
        self._forks = forks
        self._runner = runner
        self.table: dict[str, Change] = {
            "replay_calls": Change(self._preview, self._replay),
            "stop_replays": Change(self._preview_stop, self._stop),
            "continue_replays": Change(self._preview_continue, self._continue),
        }

    # ---- replay ----

    async def _preview(self, args: ReplayCalls) -> Effect:
        planned = await self._plan(args)
        changes = await self._sentences(args, planned.plans)
        loses = [
            f"{tool} acts outside of its session, and is called {counted(count * args.times, 'times')}"
            for tool, count in _outside_calls(planned.plans).items()
        ]
        displaces: tuple[str, ...] = ()
        notes = ["the recorded calls and their records stay as they are"]
        if args.edit is not None:
            notes.append("the arguments are edited, so the result can never repair the record")
        if args.then:
            calls = [plan.call for plan in planned.plans]
            forks = await self._forks.effect_if_fixed(calls)
            changes += tuple(f"if it works now: {sentence}" for sentence in forks.changes)
            displaces = tuple(f"if they work now: {sentence}" for sentence in forks.displaces)
        if planned.refused:
            are = "is" if len(planned.refused) == 1 else "are"
            notes.append(f"{counted(len(planned.refused), 'calls')} {are} left out: {planned.refused[0]}")
        return Effect(changes=changes, displaces=displaces, loses=tuple(loses), notes=tuple(notes))

    async def _sentences(self, args: ReplayCalls, plans: Sequence[ReplayPlan]) -> tuple[str, ...]:
        assert self._runner is not None
        times = "" if args.times == 1 else f" {args.times} times"
        if len(plans) == 1:
            plan = plans[0]
            version = await self._runner.version(plan.server)
            on = f"{plan.server} ({version})" if version else plan.server
            rebuild = ", ".join(one.call.tool for one in plan.rebuild[:SHOWN])
            rebuild += " …" if len(plan.rebuild) > SHOWN else ""
            rebuilds = "rebuilds" if len(plan.rebuild) == 1 else "rebuild"
            return (
                f"{plan.call.call.tool} of {plan.call.call.id} runs again{times} on {on}, in a session of its own",
                f"{counted(len(plan.rebuild), 'earlier calls')} of the record {rebuilds} the session first: {rebuild}"
                if plan.rebuild
                else "no earlier call rebuilds the session",
                f"when they were recorded, these calls took {plan.took_s:.1f} s",
            )
        sentences = []
        for server, count in Counter(plan.server for plan in plans).most_common():
            mine = [plan for plan in plans if plan.server == server]
            version = await self._runner.version(server)
            rebuild = counted(sum(len(plan.rebuild) for plan in mine), "earlier calls")
            took = sum(plan.took_s for plan in mine)
            on = f"{server} ({version})" if version else server
            sentences.append(
                f"{counted(count, 'calls')} run again{times} on {on}, after {rebuild} that rebuild their sessions; "
                f"when they were recorded, these calls took {took:.1f} s"
            )
        return tuple(sentences)

    async def _plan(self, args: ReplayCalls) -> _Planned:
        if self._runner is None:
            raise UnavailableError("This steward executes no replays.", hint="The run has no tool servers.")
        ids = list(dict.fromkeys(args.calls))
        if args.filter:
            failed = ListRows(filter=f"failed=true and ({args.filter})", limit=args.most)
            page = await pages.page(self._database, "ToolCall", failed)
            ids = [row["id"] for row in page.rows]
        plans, refused = [], []
        for id in ids:
            try:
                plans.append(_without_results(await self._runner.planner.plan(id, args.server)))
            except AgentrlError as why:
                if not args.filter:
                    raise
                refused.append(why.message)
        if not plans:
            raise RefusedError(refused[0] if refused else f"No failed tool call matches {args.filter!r}.")
        if missing := sorted({tool for plan in plans for tool in plan.outside} - set(args.allow)):
            allow = " ".join(f"--allow {tool}" for tool in missing)
            acts = "act" if len(missing) > 1 else "acts"
            raise RefusedError(
                f"{', '.join(missing)} {acts} outside of the session, so a replay may repeat what cannot be undone.",
                hint=f"If it may run again, allow it by name: {allow}",
            )
        return _Planned(plans, refused)

    async def _replay(self, args: ReplayCalls, operation: AskUnit) -> Done:
        queued = await replays.of_operation(self._database, operation.id)
        if not any(one.place == 0 for one in queued):
            planned = await self._plan(args)
            wanted = [await self._wanted(args, operation, place, plan) for place, plan in enumerate(planned.plans)]
            await replays.insert(self._database, wanted)
            queued = await replays.of_operation(self._database, operation.id)
        forked = await self._fork_fixed(queued, args.note, operation) if args.then else []
        return _done(queued, forked)

    async def _fork_fixed(self, queued: Sequence[Replay], note: str, operation: AskUnit) -> list[str]:
        """A sentence for each call that works now, of the last attempt at each seat."""
        lines = []
        for replay in fork_changes.last_attempts(queued, lambda replay: replay.record):
            undecided = replay.status == ReplayStatus.JUDGED or replay.decided_by == operation.id
            if replay.verdict != Verdict.FIXED or not undecided:
                continue
            try:
                _, _, line = await self._forks.fork_one(ForkRequest(replay=replay), note, operation)
            except AgentrlError as why:
                line = why.message
            lines.append(line)
        return lines

    async def _wanted(self, args: ReplayCalls, operation: AskUnit, place: int, plan: ReplayPlan) -> Replay:
        call = plan.call.call
        edited = args.edit is not None and args.edit != call.arguments
        text = await replays.whole_result(self._database, call)
        return Replay(
            id=replays.replay_id(call.id, operation.id),
            operation=operation.id,
            who=operation.who,
            place=place,
            call=call.id,
            record=plan.call.record,
            task=plan.call.task,
            turn=plan.call.turn,
            server=plan.server,
            recorded_server=call.server,
            tool=call.tool,
            effect=plan.effect,
            arguments=args.edit if edited and args.edit is not None else call.arguments,
            edited=edited,
            times=args.times,
            allowed=list(args.allow),
            despite_differences=args.despite_differences,
            note=args.note,
            then=then_of(call, text),
        )

    # ---- stop and continue ----

    async def _preview_stop(self, args: StopReplays) -> Effect:
        held = [one for one in await self._chosen(args.ids) if one.status == ReplayStatus.QUEUED and not one.stopped]
        if not held:
            return Effect(notes=("no replay of them is queued",))
        return Effect(changes=(f"{counted(len(held), 'replays')} that did not begin are held back",))

    async def _stop(self, args: StopReplays, operation: AskUnit) -> Done:
        chosen = await self._chosen(args.ids)
        stopped = await replays.stop(self._database, [one.id for one in chosen])
        return Done(result={"stopped": stopped})

    async def _preview_continue(self, args: ContinueReplays) -> Effect:
        held = [one for one in await self._chosen(args.ids) if one.stopped]
        if not held:
            return Effect(notes=("no replay of them is stopped",))
        return Effect(changes=(f"{counted(len(held), 'replays')} go on",))

    async def _continue(self, args: ContinueReplays, operation: AskUnit) -> Done:
        ids = [one.id for one in await self._chosen(args.ids)]
        await replays.continue_stopped(self._database, ids, operation.id)
        return _done(await self._chosen(args.ids))

    async def _chosen(self, ids: Sequence[str]) -> list[Replay]:
        return await replays.chosen(self._database, ids)


def _without_results(plan: ReplayPlan) -> ReplayPlan:
    """The plan without the results of the earlier calls, because a thousand plans would keep them all in memory."""
    light = [replace(one, call=replace(one.call, result="")) for one in plan.rebuild]
    return dataclasses.replace(plan, rebuild=tuple(light))


def _outside_calls(plans: Sequence[ReplayPlan]) -> Counter[str]:
    """How often each tool with effects outside would be called, by `server.tool`."""
    return Counter(
        f"{plan.server}.{one.call.tool}"
        for plan in plans
        for one in (*plan.rebuild, plan.call)
        if plan.acts_outside(one.call.tool)
    )


def _done(chosen: Sequence[Replay], forked: Sequence[str] = ()) -> Done:
    """The state of an operation: under way as long as a replay that is not stopped has not ended."""
    left = [one for one in chosen if one.status in OPEN and not (one.stopped and one.status == ReplayStatus.QUEUED)]
    ended = [one for one in chosen if one.status not in OPEN]
    if left:
        return Done(under_way=f"{len(ended)} of {counted(len(chosen), 'replays')} ended")
    lines = [_line(one) for one in ended[:MOST_LINES]]
    if len(ended) > MOST_LINES:
        lines.append(f"{len(ended) - MOST_LINES} more: agentrl replays list --filter operation={chosen[0].operation}")
    lines += few(forked)
    if stopped := len(chosen) - len(ended):
        lines.append(
            f"{counted(stopped, 'replays')} stopped before they began: agentrl replays continue {chosen[0].operation}"
        )
    outcomes = Counter(one.verdict or one.status for one in ended)
    result: dict[str, KnobValue] = {**dict(outcomes.most_common()), **({"stopped": stopped} if stopped else {})}
    return Done(tuple(lines), result)


def _line(replay: Replay) -> str:
    if not replay.verdict:
        return f"{replay.id}: {replay.status}: {replay.reason}"
    of = f" ({replay.agreed} of {len(replay.runs)})" if replay.agreed else ""
    edited = ", with edited arguments" if replay.edited else ""
    why = f": {replay.reason}" if replay.reason else ""
    return f"{replay.id}: {replay.verdict}{of}{edited}{why}"
