"""From the end of an episode to a scored Record, and to the end of its group.

Invariants: what the episode generated is durable before its Record is `finished`, and the structure of its tokens
before it is `scored`; a Record ends for exactly one reason; a scorer that cannot decide leaves the Record unscored and
is called again, until its deadline; if the store is away, this process waits for it as long as it may still write.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from agentrl.environments.rubric import Score
from agentrl.environments.user_tasks import FATAL, UserTasks, uncancelled
from agentrl.errors import DiskError, UnknownNameError
from agentrl.policies import outcomes
from agentrl.policies.group_closing import GroupRule
from agentrl.policies.outcomes import Outcome, OutcomeClass
from agentrl.policies.status_tables import Actor, RecordStatus
from agentrl.rollout import agent_loops, ended_episode, other_models, watchers
from agentrl.rollout.agent_loops import AgentLoop
from agentrl.rollout.batched_requests import Coalescer
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode_errors import DroppedError
from agentrl.rollout.model_calls import Wait
from agentrl.rollout.rescorer import Rescorer
from agentrl.rollout.scorers import SCORE_WITHIN_S, UnscoredError, as_score
from agentrl.rollout.user_code_faults import UserCodeFaults, described, scoring_of
from agentrl.store import calls, claims, groups, tasks
from agentrl.store.claims import Claim, Ending, Reached, Scored
from agentrl.store.database import Database, StoreError
from agentrl.store.documents import DBRecordData, Record, Task, load_if
from agentrl.store.owners import Lease
from agentrl.tokens import spans as span_lists
from agentrl.tokens import version_runs as version_runs
from agentrl.tokens.token_tree import TokenTree

log = logging.getLogger("sampler")
T = TypeVar("T")
AGAIN_S = 1.0
JUDGED_SOON_S = 0.1
"""A scorer that takes longer has the result stored before its score."""
SCORED_AT_MOST_S = 300.0
"""`agentrl why` calls a longer wait for a scorer overdue."""
UNSCORED_AT_MOST_S = 6 * 3600.0
"""The longest time without a score: a judge may be away for an afternoon without a loss. After that the seat stays
empty."""


def structure(
    record: Record,
    tree: TokenTree,
    runs: Mapping[int, version_runs.Runs],
    kind: OutcomeClass,
    context: Collection[int] = (),
) -> DBRecordData:
    """The training data of a Record. `context`: calls of its trunk that do not train."""
    spans = tree.spans
    trained = span_lists.trained_spans(spans, context)
    versions = version_runs.trained(spans, trained, runs)
    return DBRecordData(
        id=record.id,
        task=record.task,
        spans=spans,
        trained_tokens=sum(spans[index].length for index in trained),
        oldest_version=min(versions, default=None),
        versions=sorted(versions),
        capped=outcomes.capped(kind),
        intervened=record.fork is not None,
    )


async def judged(
    made: Callable[[], AgentLoop], texts: Sequence[str], task: Task, stored: Callable[[], Awaitable[EndedEpisode]]
) -> Score:
    """The boundary to code of users: whatever it raises means that it cannot decide, and has the same deadline.

    `stored` reads the whole episode. It is called for loops whose `evaluate_record` takes an episode.
    """
    ended_episode.scores(stored)
    tasks = UserTasks()
    deadline = asyncio.timeout(SCORE_WITHIN_S)
    try:
        with tasks.noted():
            async with deadline:
                loop = made()
                found, own = await _returned(loop, texts, task, stored)
            # Watchers have a time limit of their own, so a slow one does not cost the score.
            found = await watchers.added(found, lambda: loop.answer(own, task), task)
    except UnscoredError:
        raise
    except TimeoutError as late:
        why = f"did not answer within {SCORE_WITHIN_S:g} s" if deadline.expired() else f"failed: {described(late)}"
        raise UnscoredError(f"`evaluate_record` of {task.agent_name} {why}.") from late
    except UnknownNameError as unknown:
        raise UnscoredError(str(unknown)) from unknown
    except asyncio.CancelledError as raised:
        wrong = uncancelled(raised)
        raise UnscoredError(f"`evaluate_record` of {task.agent_name} failed: {described(wrong)}.") from wrong
    except (Exception, *FATAL) as broken:
        log.exception("the agent loop %s cannot score an answer to %s", task.agent_name, task.id)
        raise UnscoredError(f"`evaluate_record` of {task.agent_name} failed: {described(broken)}.") from broken
    finally:
        await tasks.end()
    for number in found.numbers:
        if not math.isfinite(number):
            raise UnscoredError(f"The agent loop {task.agent_name} answered {number}, which is no score.")
    if len(found.turns) > len(texts):
        raise UnscoredError(f"There are {len(found.turns)} rewards of turns, and the record has {len(texts)} turns.")
    return found


async def _returned(
    loop: AgentLoop, texts: Sequence[str], task: Task, stored: Callable[[], Awaitable[EndedEpisode]]
) -> tuple[Score, Sequence[str]]:
    """The score, and the texts that have the answer."""
    if _takes_episode(loop):
        # A subclass may take an episode instead of texts and task; the type of the method does not show that.
        of_episode: Callable[..., Awaitable[float | Score]] = loop.evaluate_record
        episode = await stored()
        returned, texts = await of_episode(episode), episode.own_texts
    else:
        returned = await loop.evaluate_record(texts, task)
    if returned is None:
        raise UnscoredError(f"`evaluate_record` of the agent loop {task.agent_name} returned nothing.")
    return as_score(returned), texts


def _takes_episode(loop: AgentLoop) -> bool:
    """Whether `evaluate_record` cannot be called with texts and task."""
    try:
        inspect.signature(loop.evaluate_record).bind([], None)
    except TypeError:
        return True
    return False


class RecordEnder:
    """Ends episodes in the name of one owner."""

    def __init__(
        self,
        database: Database,
        lease: Lease,
        rule: GroupRule,
        faults: UserCodeFaults | None = None,
        *,
        wait: Wait = lambda what, on, at_most_s: contextlib.nullcontext(),
    ) -> None:
        self._faults = faults or UserCodeFaults()
        self._wait = wait
        self._database = database
        self._lease = lease
        self._rule = rule
        self._together = Coalescer(self._end_together)
        self.rescorer = Rescorer(database, lease, rule, self.score_again)

    async def end(
        self, loop: AgentLoop, claim: Claim, ending: Ending, texts: Sequence[str], data: DBRecordData
    ) -> bool:
        """Ends a record by a result or a limit of the policy, after everything generated is durable. Returns False if
        the scorer cannot decide now."""
        record = claim.record

        async def stored() -> EndedEpisode:
            return await self._insist(lambda: self._stored_episode(claim, ending.outcome))

        other_models.about(record.id)
        judging = asyncio.ensure_future(judged(lambda: loop, texts, claim.task, stored))
        try:
            await asyncio.wait([judging], timeout=JUDGED_SOON_S)
            if judging.done() and judging.exception() is None:
                self._scoring_worked(claim.task)
                found = judging.result()
                scored = Scored(record.id, ending, found.value, data, found.turns, found.parts)
                await self._held(lambda: self._together.act(scored))
                return True
            # Stored first, so the result is not lost while a slow scorer works.
            await self._held(lambda: claims.finish(self._database, record.id, self._lease.incarnation, ending))
            return await self._score(judging, claim, data)
        finally:
            judging.cancel()

    async def _end_together(self, ended: Sequence[Scored]) -> list[bool]:
        scored = await claims.finish_scored(self._database, self._lease.incarnation, ended)
        tasks_of_them = sorted({one.data.task for one in ended if one.record in scored})
        await groups.close_among(self._database, tasks_of_them, self._rule, Actor.SAMPLER)
        return [one.record in scored for one in ended]

    async def fail(
        self, record: Record, outcome: Outcome, error: str, *, free: bool, reached: Reached | None = None
    ) -> None:
        """Ends a record for other reasons. The steward opens the next attempt."""
        log.info("%s failed: %s: %s", record.id, outcome, error)
        if outcome is Outcome.STORE_FAILED:
            # The ends of its calls could not be written either, so it is unknown what is stored.
            owner, reached = self._lease.incarnation, None
            await self._insist(lambda: calls.lose(self._database, record.id, owner, resumable=False))
        await self._held(
            lambda: claims.fail(
                self._database, record.id, self._lease.incarnation, outcome, error, free=free, reached=reached
            )
        )

    async def give_back(self, record: Record, *, resumable: bool) -> None:
        act = claims.hand_back if resumable else claims.abandon
        await self._held(lambda: act(self._database, record.id, self._lease.incarnation))

    async def free(self, record: Record) -> None:
        """Gives back a Record that no episode of this sampler works on."""
        owner = self._lease.incarnation
        await calls.lose(self._database, record.id, owner, resumable=record.resumable)
        # If another owner has it by now, nothing is left to do.
        await (claims.hand_back if record.resumable else claims.abandon)(self._database, record.id, owner)

    async def _score(self, judging: Awaitable[Score], claim: Claim, data: DBRecordData) -> bool:
        """Returns False if the scorer cannot decide now."""
        record, task = claim.record, claim.task
        try:
            with self._wait(f"the score of {record.id}", f"scorer {task.scorer}", SCORED_AT_MOST_S):
                found = await judging
        except UnscoredError as cannot:
            log.warning("%s is not scored: %s", record.id, cannot)
            at_fault = f"scorer {cannot.scorer}" if cannot.scorer else scoring_of(task.agent_name)
            self._faults.failed(at_fault, str(cannot), away=cannot.away)
            if record.status != RecordStatus.UNSCORED:
                why = str(cannot)
                await self._held(lambda: claims.leave_unscored(self._database, record.id, self._lease.incarnation, why))
            return False
        self._scoring_worked(task)
        owner = self._lease.incarnation
        await self._held(
            lambda: claims.score(
                self._database, record.id, owner, found.value, data, turn_rewards=found.turns, parts=found.parts
            )
        )
        await self._insist(lambda: groups.close(self._database, task.id, self._rule, Actor.SAMPLER))
        return True

    def _scoring_worked(self, task: Task) -> None:
        self._faults.worked(f"scorer {task.scorer}")
        self._faults.worked(scoring_of(task.agent_name))

    async def score_stored(self, record_id: str) -> bool:
        """Scores a Record that another sampler ended, or that its scorer could not judge before. Returns False if it is
        still not scored."""
        claim = await self._read(record_id)
        if claim is None:
            return True  # another owner has it, or its round is over
        record = claim.record
        other_models.about(record.id)
        answered = (await calls.with_tokens(self._database, [record.id]))[record.id]
        stored = calls.stored_calls(answered)
        prompts = span_lists.full_prompts(stored)
        tree = TokenTree.from_calls((index, prompts[index], call.output) for index, call in stored.items())
        runs = {call.index: call.versions for call in answered}
        context = {call.index for call in answered if call.context}
        data = structure(record, tree, runs, OutcomeClass(record.outcome_class), context)
        episode = await ended_episode.from_calls(self._database, claim.task, record.id, record.outcome, answered)

        async def ended() -> EndedEpisode:
            return episode

        judging = judged(lambda: agent_loops.loop_named(claim.task.agent_name)(), episode.texts, claim.task, ended)
        if await self._score(judging, claim, data):
            return True
        if await self._is_overdue(record):
            why = f"it could not be scored within {UNSCORED_AT_MOST_S:g} s"
            await self._held(lambda: claims.give_up_scoring(self._database, record.id, self._lease.incarnation, why))
            return True
        return False

    async def score_again(self, claim: Claim) -> Score:
        """The present score of the stored episode; rewards of turns stay as they were. Raises UnscoredError if the
        scorer cannot decide."""
        record, task = claim.record, claim.task
        other_models.about(record.id)
        if record.rescore is not None and record.rescore.scorer:
            task = msgspec.structs.replace(task, scorer=record.rescore.scorer)
        episode = await self._stored_episode(Claim(record, task), record.outcome)

        async def ended() -> EndedEpisode:
            return episode

        with self._wait(f"another score of {record.id}", f"scorer {task.scorer}", SCORED_AT_MOST_S):
            made = agent_loops.loop_named(task.agent_name)
            return await judged(lambda: made(), episode.texts, task, ended)

    async def _stored_episode(self, claim: Claim, outcome: str) -> EndedEpisode:
        record = claim.record.id
        answered = (await calls.with_tokens(self._database, [record]))[record]
        return await ended_episode.from_calls(self._database, claim.task, record, outcome, answered)

    async def _read(self, record_id: str) -> Claim | None:
        mine = {"_id": record_id, "owner": self._lease.incarnation}
        record = load_if(Record, await self._database.find_one("Record", mine))
        if record is None or record.status not in (RecordStatus.FINISHED, RecordStatus.UNSCORED):
            return None
        return Claim(record, await tasks.get(self._database, record.task))

    async def _is_overdue(self, record: Record) -> bool:
        if record.finished_at is None:
            return False
        age = await self._database.now() - record.finished_at
        return age.total_seconds() > UNSCORED_AT_MOST_S

    async def _held(self, act: Callable[[], Awaitable[bool]]) -> None:
        """Raises DroppedError if the Record no longer belongs to this owner."""
        if not await self._insist(act):
            raise DroppedError

    async def _insist(self, act: Callable[[], Awaitable[T]]) -> T:
        """Repeats an act until its result is known. Every act is a conditional update, so repeating it is safe."""
        while True:
            try:
                return await act()
            except (StoreError, DiskError) as away:
                if not self._lease.valid:
                    raise DroppedError from away
                log.warning("the store does not take the end of an episode yet: %s", away)
            await asyncio.sleep(AGAIN_S)
