"""Episodes that are tried without a run: no claims, no store, no records.

Invariants: the loop, the tools, the limits and the scorers are those of a run; the episode is shown turn by turn and
not stored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from pymongo import UpdateOne

from agentrl.config.data_plane import Rollout
from agentrl.engines.interface import Engine, Generates
from agentrl.engines.routing import Candidate
from agentrl.environments.rubric import Score
from agentrl.policies import outcomes
from agentrl.policies.outcomes import OutcomeClass
from agentrl.rollout import agent_loops
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode import Episode
from agentrl.rollout.episode_clock import EpisodeClock
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.episode_recorder import Recorder
from agentrl.rollout.episode_run import Surroundings, act, make_episode
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
"""A new episode reads nothing, and its writer stores nothing."""


Show = Callable[[DispatchedSamplingTask], None]


class ShowingWriter(Writer):
    """Shows each turn when it is over, and stores nothing."""

    def __init__(self, show: Show) -> None:
        super().__init__(_NO_STORE)
        self._show = show
        self._shown: set[str] = set()

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
        if call.over_at is not None and call.id not in self._shown:
            self._shown.add(call.id)
            self._show(call)
        return _done()


def _done() -> asyncio.Future[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


class TrialDirectory(ServiceDirectory):
    """One engine of this process, and one toolbox."""

    def __init__(self, engine: Generates, toolbox: ToolboxClient | None, *, version: int, slots: int) -> None:
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
        """Does nothing: the services never change."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """An episode that has ended and is not scored yet."""

    loop: agent_loops.AgentLoop
    task: Task
    recorder: Recorder
    ended: EndedError
    episode: Episode

    @property
    def calls(self) -> list[tuple[int, ToolCall]]:
        """The tool calls with their turns."""
        turns = enumerate(self.episode.answered_turns)
        return [(place, call) for place, turn in turns for call in self.recorder.tool_calls_of(turn)]

    async def score(self) -> Score | None:
        """None for a failure of the infrastructure, which has no score. Raises UnscoredError."""
        if outcomes.class_of(self.ended.outcome) is OutcomeClass.INFRASTRUCTURE:
            return None

        async def stored() -> EndedEpisode:
            return EndedEpisode(
                record=self.recorder.record.id,
                task=self.task,
                outcome=str(self.ended.outcome),
                texts=self.episode.texts,
                tool_calls=[call for _, call in self.calls],
                turns_of_calls=[turn for turn, _ in self.calls],
                branches=self.episode.branches,
            )

        return await judged(lambda: self.loop, self.episode.texts, self.task, stored)


async def act_once(around: Surroundings, task: Task, number: int, settings: Rollout, show: Show) -> Acted:
    """One episode, from its first prompt to its end."""
    record = Record(id=f"{task.id}/{number}", task=task.id, seat=number)
    recorder = Recorder(_NO_STORE, ShowingWriter(show), record, OWNER)
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
    return Acted(loop=loop, task=task, recorder=recorder, ended=ended, episode=episode)


async def try_once(around: Surroundings, task: Task, number: int, settings: Rollout, show: Show) -> Tried:
    """One episode, from its first prompt to its score."""
    began = time.monotonic()
    acted = await act_once(around, task, number, settings, show)
    scores, why = None, ""
    try:
        scores = await acted.score()
    except UnscoredError as cannot:
        why = str(cannot)
    return Tried(
        outcome=str(acted.ended.outcome),
        error=why or acted.ended.error,
        scores=scores,
        turns=acted.episode.turns,
        tokens=acted.recorder.own_tokens,
        took_s=time.monotonic() - began,
    )


def as_plain(call: DispatchedSamplingTask, number: int) -> dict[str, Any]:
    """A turn as a line for people and programs."""
    took = call.over_at - call.began_at if call.over_at and call.began_at else None
    return {
        "event": "turn",
        "episode": number,
        "turn": call.turn,
        "branch": call.branch,
        "text": call.text,
        "tokens": len(unpack_ids(call.output)),
        "took_s": took.total_seconds() if took else 0.0,
        "parsed": msgspec.to_builtins(call.parsed),
        "tools": [
            {"tool": each.tool, "arguments": each.arguments, "status": each.status, "result": each.result}
            for each in call.tool_calls
        ],
    }
