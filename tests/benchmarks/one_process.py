"""The learning of a run in one asyncio process: the same engine, trainer, tools and delays, and nothing else.

Nothing is stored, supervised or sent over HTTP, so the difference to a run is the overhead of those. It is also the
quickest way to try other settings:

    python -m tests.benchmarks.one_process --random 3 --set training.steps=60

Invariants: it uses the policies and the trainer of a run (admission, groups, batches, freshness); an episode that
failed for infrastructure is in no group.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import mcp_types as types
import torch
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from agentrl.chat import tool_call_parsers
from agentrl.chat.template import Template
from agentrl.chat.tokenizer import Tokenizer
from agentrl.chat.tool_specs import ToolSpec
from agentrl.config.data_plane import Environment, ToolServer
from agentrl.config.load import load_config
from agentrl.config.policy_rules import policy_loss
from agentrl.config.run import RunConfig
from agentrl.engines.embedded.embedded_engine import EmbeddedEngine
from agentrl.engines.interface import EngineCall, Sampling
from agentrl.policies import batch_cut, group_closing
from agentrl.policies.admission_capacity import Counts, Plan, capacity
from agentrl.policies.batch_cut import BatchTarget, ReadyGroup, ReadyRecord, Situation
from agentrl.policies.freshness import Freshness
from agentrl.policies.group_closing import Closed, GroupRule, Member
from agentrl.policies.outcomes import Outcome, OutcomeClass, class_of
from agentrl.policies.sampling_seeds import sampling_seed
from agentrl.policies.version_tree import VersionTree
from agentrl.rollout import answer_extraction
from agentrl.store import datasets
from agentrl.store.datasets import Row
from agentrl.store.demonstrations import read_demonstrations
from agentrl.tokens.spans import ROOT
from agentrl.training import initial_model
from agentrl.training.batch import Batch, Segment, Trajectory
from agentrl.training.learner import Learner
from agentrl.training.resume import settings_of
from agentrl.training.warmup import trajectory_of, warm_up
from assets import shop_dataset
from tests.engines import unverified

LOOK_EVERY_S = 0.01
DEADLINE_S = 60.0

Call = Callable[[str, str, dict[str, Any]], Awaitable[str]]
"""A function of session, tool and arguments. Raises InfrastructureError if the tool does not answer."""


class InfrastructureError(Exception):
    """A failure that is not the fault of the policy."""


@dataclass(frozen=True, slots=True)
class Tools:
    specs: tuple[ToolSpec, ...]
    call: Call


@dataclass(frozen=True, slots=True)
class Played:
    """One episode."""

    trajectory: Trajectory
    outcome: Outcome
    score: float
    turns: int

    @property
    def valid(self) -> bool:
        return class_of(self.outcome) is not OutcomeClass.INFRASTRUCTURE


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    order: int
    members: dict[str, Trajectory]
    closed: Closed


@dataclass(slots=True)
class StepResult:
    """The result of a step, for comparisons."""

    records: int = 0
    trained_records: int = 0
    trained_tokens: int = 0
    steps: int = 0
    rewards: list[float] = field(default_factory=list)


@contextlib.asynccontextmanager
async def connected(server: ToolServer) -> AsyncIterator[Tools]:
    """Starts the MCP server of a run file over stdio, without a toolbox."""
    program, *arguments = (part.format(python=sys.executable) for part in server.command)
    async with Client(stdio_client(StdioServerParameters(command=program, args=arguments)), cache=None) as client:
        offered = (await client.list_tools()).tools

        async def call(session: str, tool: str, arguments: dict[str, Any]) -> str:
            meta: Any = {"agentrl/session": session}
            try:
                result = await client.call_tool(tool, arguments, read_timeout_seconds=server.timeout_s, meta=meta)
            except MCPError as failed:
                raise InfrastructureError(failed.message) from None
            return "".join(part.text for part in result.content if isinstance(part, types.TextContent))

        yield Tools(tuple(ToolSpec(name=one.name, schema=one.input_schema) for one in offered), call)


class OneProcess:
    """`begin`, then `train` and `evaluate`, then `close`."""

    def __init__(self, config: RunConfig, folder: Path, tools: Tools) -> None:
        self._config = config
        self._folder = folder
        self._tools = tools
        ((self._name, self._environment),) = config.environments.items()
        self._engine = EmbeddedEngine(
            slots=config.engines.slots, context=config.sampling.context, gather_s=float(config.engines.gather_s)
        )
        self._ready: list[Group] = []
        self._in_flight = 0
        self._leased = 0
        self._version = 0
        self._sampler: asyncio.Task[None] | None = None
        """Runs from the first step until the end, also during evaluations, as in a run."""
        self._tree = VersionTree({0: None})
        self._learner: Learner
        self._template: Template
        self.story = StepResult()

    # ---- phases ----

    async def begin(self, keep_on: Callable[[int, float], bool] = lambda step, loss: True) -> None:
        """Builds the model, warms it up, and publishes the first weights."""
        training, warmup = self._config.training, self._config.training.warmup
        demonstrations = read_demonstrations(Path(warmup.dataset))
        model = initial_model.model_directory(self._config, self._folder, demonstrations)
        self._template = Template(Tokenizer(model))
        self._learner = Learner(model, settings_of(self._config))
        shown = [trajectory_of(one, self._template, str(number)) for number, one in enumerate(demonstrations)]
        await asyncio.to_thread(
            warm_up,
            self._learner,
            shown,
            steps=warmup.steps,
            batch=warmup.batch,
            learning_rate=float(warmup.learning_rate),
            chance=training.random,
            keep_on=keep_on,
        )
        self._engine.start()
        await self._publish()

    def save(self, directory: Path) -> None:
        """Saves the current weights in the form that a run can start with."""
        self._learner.save(directory)

    async def train(self, until: int, on_step: Callable[[StepResult], None] = lambda story: None) -> None:
        """Trains up to this step."""
        training = self._config.training
        loss = policy_loss(training, longest=self._config.sampling.context)
        self._sampler = self._sampler or asyncio.create_task(self._keep_sampling(), name="keep sampling")
        while self.story.steps < until:
            batch = self._next_batch(Freshness("drop", training.bound))
            if batch is None:
                await asyncio.wait({self._sampler}, timeout=LOOK_EVERY_S)
                if self._sampler.done():
                    self._sampler.result()
                continue
            if batch.trajectories:
                await asyncio.to_thread(self._learner.train, batch, loss, optimizer_steps=training.optimizer_steps)
                self._tree.add(self._version + 1, self._version)
                self._version += 1
                await self._publish()
            self._leased = 0
            self.story.steps += 1
            self.story.trained_records += len(batch.trajectories)
            self.story.trained_tokens += batch.trained_tokens
            on_step(self.story)

    async def evaluate(self) -> float:
        """Returns the mean score of the held-out tasks."""
        evaluation = self._config.evaluation
        rows = datasets.read(Path(self._environment.evaluation))
        chosen = rows[: evaluation.tasks] if evaluation.tasks else rows
        name = f"eval/{self._version}"
        played = await asyncio.gather(
            *(
                self._play_seat(row, f"{name}/{place}", float(evaluation.temperature))
                for place, row in enumerate(chosen)
            )
        )
        return sum(one.score for one in played) / len(played)

    async def close(self) -> None:
        if self._sampler:
            self._sampler.cancel()
            await asyncio.wait({self._sampler})
        await self._engine.close()

    # ---- training ----

    def _next_batch(self, freshness: Freshness) -> Batch | None:
        """Returns the next batch, or None if a run would wait."""
        ready = [_as_ready(group, self._tree, self._version) for group in self._ready]
        wanted = self._config.training.groups
        decision = batch_cut.decide(Situation(ready=ready), BatchTarget(groups=wanted, max_refill=wanted), freshness)
        by_name = {group.name: group for group in self._ready}
        gone = {*decision.stale_groups, *decision.filtered, *(group.task for group in decision.groups)}
        self._ready = [group for group in self._ready if group.name not in gone]
        if decision.act != "step":
            return None
        chosen = [by_name[group.task] for group in decision.groups]
        trained = [
            _with_advantage(by_name[group.task], record.record) for group in decision.groups for record in group.records
        ]
        self._leased = self._config.sampling.n * len(chosen)
        means = [by_name[name].closed.baseline for name in (*(one.name for one in chosen), *decision.filtered)]
        self.story.rewards.append(sum(one.mean for one in means if one is not None) / max(1, len(means)))
        seen = {version for one in trained for version in one.versions}
        ages = {version: self._tree.age(version, self._version) for version in seen}
        return Batch(step=self.story.steps + 1, base_version=self._version, trajectories=trained, ages=ages)

    async def _publish(self) -> None:
        """Passes the weights to the engine through a file in memory, as a run does, but without verification."""
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            await asyncio.to_thread(self._learner.save, Path(folder))
            await unverified.serve(self._engine, Path(folder), self._version)

    # ---- sampling ----

    async def _keep_sampling(self) -> None:
        config = self._config
        n, training = config.sampling.n, config.training
        plan = Plan(training.bound, training.groups * n, config.rollout.max_in_flight, training.publish_every)
        rows = datasets.read(Path(self._environment.dataset))
        async with asyncio.TaskGroup() as tasks:
            for order in itertools.count():
                epoch, place = divmod(order, len(rows))
                if not place:
                    shuffled = random.Random(epoch).sample(rows, len(rows))
                while capacity(plan, self._counts()) < n:
                    await asyncio.sleep(LOOK_EVERY_S)
                self._in_flight += n
                tasks.create_task(self._group(shuffled[place], order), name=f"group {order}")

    def _counts(self) -> Counts:
        ready = sum(self._config.sampling.n for group in self._ready if group.closed.signal)
        return Counts(running=self._in_flight, ready=ready, leased=self._leased)

    async def _group(self, row: Row, order: int) -> None:
        n, name = self._config.sampling.n, f"task {order}"
        episodes = (
            self._play_seat(row, f"{name}/{seat}", float(self._config.sampling.temperature)) for seat in range(n)
        )
        played = await asyncio.gather(*episodes)
        self._in_flight -= n
        self.story.records += n
        members = [
            Member(one.trajectory.record, class_of(one.outcome), one.score, one.turns) for one in played if one.valid
        ]
        closed = group_closing.close(members, n, GroupRule())
        if closed.enough:
            self._ready.append(Group(name, order, {one.trajectory.record: one.trajectory for one in played}, closed))

    async def _play_seat(self, row: Row, name: str, temperature: float) -> Played:
        """Plays a seat. An attempt that failed for infrastructure is repeated at most twice."""
        for attempt in range(3):
            played = await self._episode(row, f"{name}.{attempt}", temperature)
            if played.valid:
                break
        return played

    async def _episode(self, row: Row, name: str, temperature: float) -> Played:
        segments: list[Segment] = []
        ids = self._template.first(self._environment.system, self._tools.specs, row.query)
        addition, text = ids, ""
        malformed = turns = 0
        while True:
            made = await self._engine.generate(
                EngineCall(
                    f"{name}/c{turns}", ids, self._sampling(name, turns, len(ids), temperature), deadline_s=DEADLINE_S
                )
            )
            turns += 1
            segments.append(Segment(parent=len(segments) - 1 if segments else ROOT, ids=addition))
            segments.append(
                Segment(
                    parent=len(segments) - 1,
                    ids=made.ids,
                    trains=True,
                    log_probs=made.log_probs,
                    versions=made.versions,
                    temperature=temperature,
                )
            )
            if made.finish != "stop":
                outcome = Outcome.TOKEN_LIMIT
                break
            text = self._template.tokenizer.decode(made.ids[:-1])
            parsed = tool_call_parsers.parse(self._environment.parser, text, self._tools.specs)
            if not parsed.calls and not parsed.errors:
                outcome = Outcome.ANSWERED
                break
            malformed += bool(parsed.errors)
            if outcome_ := _outcome_without_chance(self._environment, turns, malformed):
                outcome = outcome_
                break
            try:
                results = [await self._call(name, call) for call in parsed.calls]
            except InfrastructureError:
                outcome = Outcome.TOOL_SERVER_FAILED
                break
            addition = self._template.tool_results([*results, *parsed.errors])
            ids = [*ids, *made.ids, *addition]
            if len(ids) >= self._config.sampling.context:
                outcome = Outcome.CONTEXT_FULL
                break
        answer = (
            answer_extraction.extract(self._environment.answer_schema, text) if outcome is Outcome.ANSWERED else None
        )
        score = float(answer is not None and answer.split() == row.answer.split())
        whole = Trajectory(record=name, group=name.rpartition("/")[0], segments=segments)
        return Played(whole, outcome, score, turns)

    async def _call(self, session: str, call: tool_call_parsers.Call) -> str:
        if call.name not in {spec.name for spec in self._tools.specs}:
            return f"There is no tool {call.name}. There are: {', '.join(one.name for one in self._tools.specs)}."
        return await self._tools.call(session, call.name, call.arguments)

    def _sampling(self, name: str, call: int, prompt: int, temperature: float) -> Sampling:
        sampling = self._config.sampling
        chance = self._config.training.random
        return Sampling(
            temperature=temperature,
            max_new_tokens=max(1, min(sampling.max_tokens, sampling.context - prompt)),
            stop_token_ids=self._template.stop_ids,
            seed=sampling_seed(chance, task=name, round=1, seat=0, attempt=1, call=call),
        )


def _outcome_without_chance(environment: Environment, turns: int, malformed: int) -> Outcome | None:
    if turns >= environment.max_turns:
        return Outcome.TURN_LIMIT
    return Outcome.INVALID_CALL_LIMIT if malformed > 3 else None


def _as_ready(group: Group, tree: VersionTree, version: int) -> ReadyGroup:
    records = tuple(
        ReadyRecord(name, tree.staleness(group.members[name].versions, version))
        for name, share in group.closed.shares.items()
        if share.advantage is not None
    )
    return ReadyGroup(group.name, group.order, group.closed.signal, records)


def _with_advantage(group: Group, record: str) -> Trajectory:
    one, share = group.members[record], group.closed.shares[record]
    return Trajectory(record=record, group=group.name, segments=one.segments, advantage=share.advantage or 0.0)


def shop_run(folder: Path, random_number: int, sets: Sequence[str] = (), **rows: int) -> RunConfig:
    """The configuration of the demo, with its data in this folder; `rows` overrides the amounts of data."""
    file = folder / "assets" / "train.yaml"
    file.parent.mkdir()
    file.write_bytes(resources.files("assets").joinpath("train.yaml").read_bytes())
    shop_dataset.write(folder / "runs" / "shop-data", random_number=random_number, **rows)
    chance = f"training.random={random_number}"
    return load_config(file, sets=[chance, *sets], environ={}).config


async def _try(config: RunConfig, folder: Path, every: int) -> None:
    """Trains and prints the progress."""
    (server,) = config.tools.values()
    torch.set_num_threads(config.training.threads)
    began = time.monotonic()

    def print_line(what: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {time.process_time():6.1f} CPU s  {what}", flush=True)

    async with connected(server) as tools:
        one = OneProcess(config, folder, tools)
        await one.begin(lambda step, loss: _print_warmup(print_line, step, loss))
        print_line(f"held out {await one.evaluate():.3f} after the warm-up")
        steps = config.training.steps
        for until in range(every, steps + every, every):
            await one.train(min(until, steps))
            recent = one.story.rewards[-every:]
            print_line(
                f"held out {await one.evaluate():.3f} after {one.story.steps} steps, "
                f"reward {sum(recent) / len(recent):.2f}, {one.story.records} records"
            )
        await one.close()


def _print_warmup(print_line: Callable[[str], None], step: int, loss: float) -> bool:
    if step % 25 == 0:
        print_line(f"warm-up {step}: loss {loss:.3f}")
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.one_process", description=__doc__)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--every", type=int, default=10, help="steps between two evaluations")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as `agentrl up --set`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        config = shop_run(Path(folder), given.random, given.set)
        asyncio.run(_try(config, Path(folder), given.every))


if __name__ == "__main__":
    main()
