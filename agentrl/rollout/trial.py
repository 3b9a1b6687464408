"""Episodes that are tried without a run: no claims, no store, no records.

Invariants: the loop, the tools, the limits and the scorers are those of a run; what happens is told turn by turn and
kept nowhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from pymongo import UpdateOne

from agentrl.chat.template import Template
from agentrl.engines.interface import Engine, Generated, Sampling
from agentrl.engines.routing import Candidate
from agentrl.environments.rubric import Score
from agentrl.policies import outcomes
from agentrl.policies.outcomes import OutcomeClass
from agentrl.rollout import agent_loops
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode_clock import EpisodeClock
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.episode_recorder import Recorder
from agentrl.rollout.episode_run import EpisodeSettings, Surroundings, act, make_episode
from agentrl.rollout.record_ending import judged
from agentrl.rollout.scorers import UnscoredError
from agentrl.rollout.service_directory import ChosenToolbox, ServiceDirectory
from agentrl.store.call_writer import Writer
from agentrl.store.database import Database
from agentrl.store.documents import DispatchedSamplingTask, Record, Task, ToolCall
from agentrl.tokens.binary_format import unpack_ids
from agentrl.toolbox.client import ToolboxClient

OWNER = "trial"
_NO_STORE = cast(Database, None)
"""An episode that nobody had before reads nothing, and its writer writes nowhere."""
Tell = Callable[[DispatchedSamplingTask], None]


class TellingWriter(Writer):
    """Tells each turn when it is over, and stores nothing."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(_NO_STORE)
        self._tell = tell
        self._told: set[str] = set()

    def insert(self, call: DispatchedSamplingTask) -> asyncio.Future[None]:
        return self._look(call)

    def update(
        self,
        call: DispatchedSamplingTask,
        names: Collection[str],
        moved: Sequence[ToolCall] = (),
        *,
        new: Sequence[ToolCall] = (),
    ) -> asyncio.Future[None]:
        return self._look(call)

    def progress(self, record: str, owner: str, update: UpdateOne) -> asyncio.Future[None]:
        return _done()

    def _look(self, call: DispatchedSamplingTask) -> asyncio.Future[None]:
        if call.over_at is not None and call.id not in self._told:
            self._told.add(call.id)
            self._tell(call)
        return _done()


def _done() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


class TrialDirectory(ServiceDirectory):
    """One engine of this process, and one toolbox."""

    def __init__(
        self, engine: Engine | ToldReplies, toolbox: ToolboxClient | None, *, version: int, slots: int
    ) -> None:
        super().__init__(_NO_STORE, "", lambda url: cast(ToolboxClient, toolbox))
        self._engine = cast(Engine, engine)
        self._toolbox = toolbox
        self._only = Candidate(
            name="engine",
            url="",
            serving=True,
            version=version,
            versions_loaded=(version,),
            slots=slots,
            running=0,
            seen_at=time.monotonic(),
        )

    def engine(self, affinity: str, version: int | None = None, avoid: Collection[str] = ()) -> Candidate | None:
        return self._only

    def client(self, engine: Candidate) -> Engine:
        return self._engine

    def toolbox(self, servers: Sequence[str], conversation: str) -> ChosenToolbox | None:
        return None if self._toolbox is None else ChosenToolbox("toolbox", self._toolbox)

    async def look(self) -> None:
        """Nothing comes or goes."""


class ToldReplies:
    """An engine that says what it was told, in each episode from the beginning; the last reply again and again."""

    def __init__(self, template: Template, replies: Sequence[str], version: int) -> None:
        self._replies = [template.assistant(reply) for reply in replies]
        self._version = version
        self._said: Counter[str] = Counter()
        """By record."""

    async def generate(
        self, rid: str, ids: Sequence[int], sampling: Sampling, *, deadline_s: float, version: int | None = None
    ) -> Generated:
        record = rid.rpartition("/")[0]
        number = min(self._said[record], len(self._replies) - 1)
        self._said[record] += 1
        said = self._replies[number][: sampling.max_new_tokens]
        whole = len(said) == len(self._replies[number])
        return Generated(
            ids=said,
            log_probs=[0.0] * len(said),
            versions=[(self._version, len(said))],
            finish="stop" if whole else "length",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of an episode."""

    outcome: str
    error: str
    scores: Score | None
    """None if it is not scored; `error` says why."""
    turns: int
    tokens: int
    took_s: float


async def try_once(around: Surroundings, task: Task, number: int, settings: EpisodeSettings, tell: Tell) -> Tried:
    """One episode, from its first prompt to its score."""
    began = time.monotonic()
    recorder = Recorder(_NO_STORE, TellingWriter(tell), Record(id=f"{task.id}/{number}", task=task.id), OWNER)
    clock = EpisodeClock(settings.episode_s)
    loop = agent_loops.loop_named(task.agent_name)()
    episode, _, tool_calls = make_episode(around, task, recorder, settings, clock)
    try:
        ended = await act(loop, episode, tool_calls, settings, clock)
        episode.over()
        await recorder.settled()
    finally:
        recorder.close()
        await tool_calls.close()
    scores, why = await _score(loop, task, recorder, ended, episode.texts)
    return Tried(
        outcome=str(ended.outcome),
        error=why or ended.error,
        scores=scores,
        turns=episode.turns,
        tokens=recorder.own_tokens,
        took_s=time.monotonic() - began,
    )


async def _score(
    loop: agent_loops.AgentLoop, task: Task, recorder: Recorder, ended: EndedError, texts: Sequence[str]
) -> tuple[Score | None, str]:
    if outcomes.class_of(ended.outcome) is OutcomeClass.INFRASTRUCTURE:
        return None, ""
    calls = [(turn, call) for turn in range(len(texts)) for call in recorder.tool_calls_of(turn)]

    async def stored() -> EndedEpisode:
        return EndedEpisode(
            record=recorder.record.id,
            task=task,
            outcome=str(ended.outcome),
            texts=texts,
            tool_calls=[call for _, call in calls],
            turns_of_calls=[turn for turn, _ in calls],
        )

    try:
        return await judged(lambda: loop, texts, task, stored), ""
    except UnscoredError as cannot:
        return None, str(cannot)


def as_plain(call: DispatchedSamplingTask, number: int) -> dict[str, Any]:
    """A turn as a line for people and programs."""
    took = call.over_at - call.began_at if call.over_at and call.began_at else None
    return {
        "event": "turn",
        "episode": number,
        "turn": call.turn,
        "text": call.text,
        "tokens": len(unpack_ids(call.output)),
        "took_s": took.total_seconds() if took else 0.0,
        "parsed": msgspec.to_builtins(call.parsed),
        "tools": [
            {"tool": each.tool, "arguments": each.arguments, "status": each.status, "result": each.result}
            for each in call.tool_calls
        ],
    }
