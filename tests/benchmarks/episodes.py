"""Simulates episodes without model and tools: the code of the sampler makes all its writes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.engines.interface import Generated, Sampling
from agentrl.policies.group_closing import GroupRule
from agentrl.policies.outcomes import Outcome, OutcomeClass
from agentrl.policies.status_tables import ToolCallStatus
from agentrl.rollout.agent_loops import AgentLoop
from agentrl.rollout.episode_recorder import Recorder
from agentrl.rollout.record_ending import RecordEnder, structure
from agentrl.store import claims, document_ids, owners, tasks
from agentrl.store.call_writer import Writer, now
from agentrl.store.claims import Claim, Ending
from agentrl.store.database import Database
from agentrl.store.documents import ParsedCall, Task
from agentrl.store.owners import Lease
from agentrl.toolbox.api_messages import CallAnswer
from tests.store.flow import admit

VOCABULARY = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of every episode."""

    turns: int
    prompt: int
    """Tokens in the first prompt."""
    output: int
    """Tokens that the model generates in a turn."""
    result: int
    """Tokens in a tool result, of four characters each."""


class RandomScorer(AgentLoop):
    """Scores at random without delay."""

    async def run(self, episode: object) -> Outcome:
        raise NotImplementedError("the benchmark plays these episodes itself")

    async def evaluate_record(self, texts: Sequence[str], task: Task) -> float:
        return random.random()


async def prepare(database: Database, groups: int, n: int) -> None:
    """Creates open Records."""
    rows = [
        Task(id=document_ids.task_id("shop", "train", 0, number), environment="shop", row=number, place=number)
        for number in range(groups)
    ]
    await tasks.insert(database, rows)
    for task in rows:
        assert await admit(database, task, n=n)


class Sampler:
    """The writing part of a sampler."""

    def __init__(self, database: Database, name: str, shape: Shape) -> None:
        self._database = database
        self._owner = f"{name}.1"
        self._lease = Lease(database, self._owner, unit=name, role="sampler")
        self._writer = Writer(database)
        self._endings = RecordEnder(database, self._lease, GroupRule())
        self._last = claims.LastClaims(database)
        self._shape = shape
        self._chance = random.Random(name)

    async def run(self, concurrency: int) -> int:
        """Runs until no Record is open. Returns the count of ended ones."""
        await self._lease.open()
        done, playing = 0, set[asyncio.Task[None]]()
        while claimed := await claims.claim_several(
            self._database, self._owner, concurrency - len(playing), resumable=True, last=self._last
        ):
            playing |= {asyncio.create_task(self._play(claim)) for claim in claimed}
            if len(playing) == concurrency:
                ended, playing = await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
                done += len(ended)
        await asyncio.gather(*playing)
        await self._writer.close()
        await owners.expire(self._database, self._owner, "it ended")
        return done + len(playing)

    async def _play(self, claim: Claim) -> None:
        shape = self._shape
        recorder = await Recorder.begin(self._database, self._writer, claim, self._owner)
        ids, texts = self._tokens(shape.prompt), list[str]()
        for turn in range(shape.turns):
            last = turn == shape.turns - 1
            call = recorder.sent(turn, ids, Sampling(max_new_tokens=shape.output), "engine-0.1")
            made = self._made()
            recorder.answered(call, ids, made)
            texts.append(" word" * (shape.output // 2))
            parsed = [] if last else [ParsedCall(name="lookup", arguments={"item": "pear"})]
            recorder.parsed(turn, texts[-1], parsed, now())
            if not last:
                await self._tool(recorder, turn)
                ids = [*ids, *made.ids, *self._tokens(shape.result)]
            recorder.turn_over(turn, last=last)
        await recorder.settled()
        recorder.close()
        ending = Ending(outcome=Outcome.ANSWERED, turns=shape.turns, generated_tokens=shape.turns * shape.output)
        data = structure(claim.record, recorder.tree, recorder.runs, OutcomeClass.POLICY)
        assert await self._endings.end(RandomScorer(), claim, ending, texts, data)

    async def _tool(self, recorder: Recorder, turn: int) -> None:
        wanted = await recorder.requested(
            turn, 0, server="shop", tool="lookup", arguments={"item": "pear"}, session=recorder.record.id
        )
        recorder.tool_runs(wanted)
        said = CallAnswer(status="ok", content=result_of(self._shape), latency_s=0.01)
        recorder.tool_moved(wanted, ToolCallStatus.OK, said)

    def _made(self) -> Generated:
        count = self._shape.output
        log_probs = [-self._chance.random() for _ in range(count)]
        return Generated(ids=self._tokens(count), log_probs=log_probs, versions=[(1, count)], finish="stop")

    def _tokens(self, count: int) -> list[int]:
        return self._chance.choices(range(VOCABULARY), k=count)


def result_of(shape: Shape) -> str:
    return "42, " * shape.result
