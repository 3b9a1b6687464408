"""Measures what an environment in a Python file costs: a message loop, many open episodes, the first turn of a trial.

Invariant: episodes are those of `agentrl try`; only the model is a script, so that nothing but the loop is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil

from agentrl.chat.template import Template
from agentrl.config.data_plane import Rollout
from agentrl.config.run import RunConfig
from agentrl.engines.embedded.tiny_words import build_words
from agentrl.environments import environment as declarations
from agentrl.policies.outcomes import Outcome
from agentrl.rollout import chat_format, trial
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.contract.scripted_model import ScriptedModel
from agentrl.rollout.declared_environments import register_declared
from agentrl.rollout.episode import Episode
from agentrl.rollout.episode_run import Surroundings
from agentrl.store.documents import Task
from agentrl.toolbox.api_messages import CallAnswer, Opened, ToolInfo
from agentrl.toolbox.client import ToolboxClient
from daemons.trial_services import surroundings_of
from tests.benchmarks.report import Outcome as Figures
from tests.benchmarks.report import median

EXAMPLES = Path(__file__).parents[2] / "assets" / "environments"
TURNS = 6
EPISODES = 200
ROUNDS = 5
OPEN = 10_000
STARTS = 7
SETTINGS = Rollout(call_s=600.0, episode_s=3600.0)
SECOND = "And then?"


class _WaitingToolbox(ToolboxClient):
    """A toolbox whose calls wait until they are released. There is no tool process, whose memory would not be that of
    the sampler."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1", "")
        self.waiting = 0
        self.go = asyncio.Event()

    async def tools(self, server: str = "") -> tuple[ToolInfo, ...]:
        return (ToolInfo(server="shop", name="look", effect="pure"),)

    async def open(self, session: str, servers: Any, *, wait_s: float = 30.0, replays: bool = False) -> Opened:
        return Opened(id=session, created=True, servers=tuple(servers))

    async def call(
        self, session: str, call: str, server: str, tool: str, arguments: dict[str, Any], *, timeout_s: float = 0.0
    ) -> CallAnswer:
        self.waiting += 1
        await self.go.wait()
        return CallAnswer(status="ok", content="nothing")

    async def close(self, session: str, *, forget: bool = False) -> None: ...


@register_loop("benchmark_tokens")
class TokenLoop(AgentLoop):
    """The same as `messages`, on token ids."""

    async def run(self, episode: Episode) -> Outcome:
        prompt = episode.first_prompt()
        reply = await episode.model(prompt)
        for _ in range(TURNS - 1):
            prompt = [*prompt, *reply.ids, *episode.template.user(SECOND, ended=reply.ended)]
            reply = await episode.model(prompt)
        return Outcome.ANSWERED


async def messages(episode: declarations.Conversation) -> None:
    """The same as `TokenLoop`, on messages."""
    await episode.chat()
    for _ in range(TURNS - 1):
        await episode.chat(SECOND)


@contextlib.asynccontextmanager
async def _surroundings(toolbox: ToolboxClient | None = None) -> AsyncIterator[tuple[Surroundings, ScriptedModel]]:
    plain: dict[str, Any] = {
        "name": "benchmark",
        "model": {"build": "tiny"},
        "environments": {"bench": {"dataset": "none.jsonl", "agent": "tool_agent", "max_turns": TURNS}},
        "sampling": {"max_tokens": 1024, "context": 100_000},
    }
    if toolbox is not None:
        plain["tools"] = {"shop": {"command": ["none"]}}
        plain["environments"]["bench"]["tools"] = ["shop"]
    with tempfile.TemporaryDirectory() as folder:
        build_words(Path(folder), ["a question and an answer"])
        chat = chat_format.read(Path(folder))
        model = ScriptedModel(Template.of(Path(folder)), 0)
        config = RunConfig.model_validate(plain)
        async with surroundings_of(config, chat, model, toolbox, at_once=OPEN) as around:  # type: ignore[arg-type]
            yield around, model


def _task(agent: str, servers: list[str]) -> Task:
    return Task(id=f"bench/{agent}", environment="bench", query="What now?", agent_name=agent, servers=servers)


async def _rate(around: Surroundings, model: ScriptedModel, agent: str) -> float:
    """Episodes per second, with all episodes at the same time."""
    task = _task(agent, [])
    for number in range(EPISODES):
        model.write(f"{task.id}/{number}", ["an answer of some words"])
    began = time.perf_counter()
    acting = [trial.act_once(around, task, number, SETTINGS, lambda call: None) for number in range(EPISODES)]
    acted = await asyncio.gather(*acting)
    took_s = time.perf_counter() - began
    assert {each.ended.outcome for each in acted} <= {Outcome.ANSWERED, Outcome.NO_ANSWER}, acted[0].ended
    for number in range(EPISODES):
        model.forget(f"{task.id}/{number}")
    return EPISODES / took_s


async def loops() -> tuple[list[float], list[float]]:
    """Episodes per second of the loop on messages and of the loop on token ids, measured in turns."""
    if "bench_messages" not in {each.name for each in declarations.declared()}:
        declarations.Environment("bench_messages", dataset="none.jsonl", agent=messages)
        register_declared()
    by_messages, by_tokens = [], []
    async with _surroundings() as (around, model):
        for _ in range(ROUNDS):
            by_tokens.append(await _rate(around, model, "benchmark_tokens"))
            by_messages.append(await _rate(around, model, "bench_messages"))
    return by_messages, by_tokens


def _resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


async def open_episodes(count: int) -> tuple[float, int]:
    """The memory of each episode that waits for a tool, in KiB, and how many episodes ended with an answer."""
    toolbox = _WaitingToolbox()
    async with _surroundings(toolbox) as (around, model):
        task = _task("tool_agent", ["shop"])
        call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
        for number in range(count):
            model.write(f"{task.id}/{number}", [call, "<answer>done</answer>"])
        before = _resident()
        acting = [
            asyncio.create_task(trial.act_once(around, task, number, SETTINGS, lambda call: None))
            for number in range(count)
        ]
        while toolbox.waiting < count:
            await asyncio.sleep(0.05)
        held = (_resident() - before) / count / 1024
        toolbox.go.set()
        acted = await asyncio.gather(*acting)
    return held, sum(each.ended.outcome is Outcome.ANSWERED for each in acted)


async def sleeping(count: int) -> float:
    """The memory of a task that sleeps, in KiB."""
    before = _resident()
    go = asyncio.Event()
    tasks = [asyncio.create_task(_sleep(go)) for _ in range(count)]
    await asyncio.sleep(0.2)
    held = (_resident() - before) / count / 1024
    go.set()
    await asyncio.gather(*tasks)
    return held


async def _sleep(go: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(go.wait(), 3600)


def _in_own_process(work: str) -> Any:
    """Run a measurement in a separate process, so that it does not count memory of the others."""
    program = (
        f"import asyncio, json\nfrom tests.benchmarks import environments as e\nprint(json.dumps(asyncio.run({work})))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def first_turn_s(folder: Path) -> float:
    """The time from the command until the first turn of the small model is printed."""
    command = [sys.executable, "-m", "agentrl", "--json", "try", str(EXAMPLES / "quiz.py"), "-n", "1"]
    command += ["--set", "sampling={max_tokens: 8, context: 512}"]
    began = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as trying:
        assert trying.stdout is not None
        for line in trying.stdout:
            if json.loads(line)["event"] == "turn":
                took_s = time.perf_counter() - began
                trying.communicate()
                return took_s
    raise AssertionError("there was no turn")


def import_torch_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def measure() -> Figures:
    figures = Figures("An environment in a Python file")
    by_messages, by_tokens = _in_own_process("e.loops()")
    figures.share(
        "episodes of a loop of messages", median(by_messages), "/s", "the same on token ids", median(by_tokens), 0.9
    )
    held, ended = _in_own_process(f"e.open_episodes({OPEN})")
    figures.at_most(f"memory of each of {OPEN:,} episodes that wait for a tool", held, "KiB", 50)
    figures.at_most("of them, episodes that did not end well", OPEN - ended, "", 0)
    figures.plain("memory of a task of asyncio that sleeps", _in_own_process(f"e.sleeping({OPEN})"), "KiB")
    with tempfile.TemporaryDirectory() as folder:
        pairs = [(import_torch_s(), first_turn_s(Path(folder))) for _ in range(STARTS)]
    torch_s, turn_s = (min(each) for each in zip(*pairs, strict=True))
    figures.plain(f"python -c 'import torch', fastest of {STARTS}", torch_s, "s")
    figures.at_most(f"`agentrl try` until the first turn, fastest of {STARTS}, beyond that", turn_s - torch_s, "s", 1)
    figures.notes.append(f"Loops: {TURNS} turns each, {EPISODES} episodes side by side, and the model is a script.")
    return figures
