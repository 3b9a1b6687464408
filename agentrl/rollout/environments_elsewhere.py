"""Environments of Python files that run in a process of their own: with a Python of their own (`python`), in a sandbox
(`sandbox`), or both.

Their agents and scorers run beside the sampler and ask it for turns, tools and other models, so turns, limits and
records work as in any other environment. `agentrl.environments.activities` is the other side.

Invariants:
- The file is never imported here: it may need packages that agentrl does not have, or not be trusted.
- If a required sandbox is not available on this host, the environment is refused before an episode begins.
- A process that dies fails its episodes with a sentence, and the next episode starts it again.
- What such a process says is checked before it is used, and what it asks for at the same time is bounded.
- An activity that has ended asks for nothing: what its code still waits for is cancelled.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from agentrl.adapters.player import OWN_PYTHON, PlainStart, PlayerError
from agentrl.adapters.player_process import PlayerProcess, Start
from agentrl.chat.tool_call_parsers import Call
from agentrl.config.own_tool_servers import PROGRAM
from agentrl.config.run import RunConfig
from agentrl.environments.conversation import Reply
from agentrl.environments.other_models import OtherModel, OtherModelError, other_model
from agentrl.environments.rubric import Score
from agentrl.policies import outcomes
from agentrl.policies.outcomes import Outcome, OutcomeClass
from agentrl.rollout import scorers
from agentrl.rollout.agent_loops import AgentLoop, register_loop
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.declared_environments import keep_state, only_whole, seen
from agentrl.rollout.ended_episode import EndedEpisode
from agentrl.rollout.episode import Episode
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.sandboxed_starts import Confined, confined
from agentrl.rollout.scorers import UnscoredError, register_scorer
from agentrl.rollout.tool_agent import ToolAgent
from agentrl.toolservers.user_names import Image

ACTIVITIES = "agentrl.environments.activities"
MOST_WANTS = 1_000
"""What one activity may ask for at the same time."""
Serve = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class FileProgram:
    """How the process of an environment is started."""

    source: str
    name: str
    python: str
    confined: Confined

    @property
    def command(self) -> list[str]:
        asked = {"module": ACTIVITIES, "file": self.source, "name": self.name}
        return [self.python.replace(OWN_PYTHON, sys.executable), PROGRAM, "play", json.dumps(asked)]

    def start(self) -> Start:
        if self.confined.sandbox.kind == "none":
            return PlainStart(self.command)
        return self.confined.start(self.command, Path(self.source))

    def error(self, what: str) -> PlayerError:
        by = "" if self.python == OWN_PYTHON else f", run by {self.python}"
        message = f"{Path(self.source).name}{by}: {what.rstrip('.')}."
        return PlayerError(message, hint=self.confined.lacking(what))


def register_elsewhere(config: RunConfig) -> None:
    """Register these environments of a run under their names."""
    for name, environment in config.environments.items():
        if not environment.is_apart:
            continue
        program = FileProgram(environment.code, name, environment.python, confined(name, config))
        register_loop(name)(_loop_of(name, program, resumable=environment.resumable))
        register_scorer(name)(only_whole(name))


def _loop_of(name: str, program: FileProgram, *, resumable: bool) -> type[AgentLoop]:

    class ElsewhereLoop(ToolAgent):
        @classmethod
        async def prepare(cls) -> None:
            await _process_of(program).ask("alive")

        async def run(self, episode: Episode) -> Outcome:
            served = _ServedEpisode(episode, super().run)
            given = {"query": served.main.query, "row": dict(served.main.row), "tools": list(served.main.tools)}
            try:
                ended = await activity(program, "act", given, served.serve)
            except EndedError as limited:
                if outcomes.class_of(limited.outcome) is OutcomeClass.LIMIT:
                    await keep_state(episode, served.main)
                raise
            served.keep(ended.state)
            await keep_state(episode, served.main)
            returned = ended.returned
            # What is no outcome is said as it is of an agent that runs here.
            return self.ending(episode.last_text, episode.task) if returned is None else cast(Outcome, returned)

        async def evaluate_record(self, episode: EndedEpisode) -> float | Score:  # type: ignore[override]
            answer = self.answer(episode.own_texts, episode.task)
            if episode.task.scorer != name:
                return await scorers.score(episode.task.scorer, answer, episode.task)
            unanswered: list[OtherModelError] = []

            async def serve(want: dict[str, Any]) -> Any:
                try:
                    return await _of_a_scorer(want)
                except OtherModelError as away:
                    unanswered.append(away)
                    raise

            try:
                found = (await activity(program, "score", asdict(seen(episode, answer)), serve)).returned
            except PlayerError as cannot:
                # The process returns only a sentence, so the error that it got from here is remembered.
                raise UnscoredError(str(cannot)) from (unanswered[-1] if unanswered else cannot)
            return Score(found["value"], found["parts"], tuple(found["turns"]))

    ElsewhereLoop.resumable = resumable
    ElsewhereLoop.__name__ = ElsewhereLoop.__qualname__ = name
    return ElsewhereLoop


class _ServedEpisode:
    """Makes the model calls and tool calls of an episode for the process that plays it."""

    def __init__(self, episode: Episode, tool_agent: Callable[[Episode], Awaitable[Outcome]]) -> None:
        self.main = Conversation(episode)
        self._episode = episode
        self._tool_agent = tool_agent
        self._conversations = {"": self.main}

    def keep(self, state: dict[str, Any]) -> None:
        self.main.state.clear()
        self.main.state.update(state)

    async def serve(self, want: dict[str, Any]) -> Any:
        self.keep(want["state"])
        match want["do"]:
            case "tool_agent":
                return str((await self._tool_agent(self._episode)).value)
            case "ask":
                return await _answered(self.main.other(want["name"], purpose=want["purpose"]), want)
        of = self._conversation(want["branch"], want["system"])
        match want["do"]:
            case "chat":
                reply = await of.chat(want["message"], results=want["results"])
                calls = [[call.name, call.arguments] for call in reply.calls]
                return {"text": reply.text, "calls": calls, "errors": list(reply.errors)}
            case "images":
                return [base64.b64encode(each.data).decode() for each in await of.images(want["text"])]
            case "text_of":
                return await of.text_of(Image(base64.b64decode(want["data"], validate=True)))
            case "results_of":
                return await of.results_of(Reply("", [Call(*call) for call in want["calls"]], want["errors"]))
        return await of.call(want["tool"], **want["arguments"])

    def _conversation(self, name: str, system: str | None) -> Conversation:
        if name not in self._conversations:
            self._conversations[name] = self.main.branch(name, system=system)
        return self._conversations[name]


async def _of_a_scorer(want: dict[str, Any]) -> Any:
    return await _answered(other_model(want["name"], purpose=want["purpose"]), want)


async def _answered(model: OtherModel, want: dict[str, Any]) -> str:
    fields = {key: want[key] for key in ("temperature", "max_tokens", "salt")}
    return await model.chat(want["messages"], **fields)


@dataclass(frozen=True, slots=True)
class Ended:
    """An activity that has ended by itself."""

    returned: Any
    state: dict[str, Any]


async def activity(program: FileProgram, kind: str, given: dict[str, Any], serve: Serve) -> Ended:
    """Plays an episode (`act`) or scores one (`score`). Raises PlayerError, and the errors that end the episode."""
    process, key = _process_of(program), uuid.uuid4().hex
    try:
        await process.ask("begin", activity=key, kind=kind, given=given)
        async with _first_error(), asyncio.TaskGroup() as tasks:
            giving: set[asyncio.Task[None]] = set()
            while "want" in (message := _checked(program, await process.ask("next", activity=key))):
                if len(giving) >= MOST_WANTS:
                    raise program.error(f"it asks for more than {MOST_WANTS} things at the same time")
                name = f"{kind} {message['want']} of {key}"
                giving.add(task := tasks.create_task(_give(process, key, message, serve), name=name))
                task.add_done_callback(giving.discard)
            for task in giving:
                task.cancel()
        if "failed" in message:
            raise program.error(message["failed"])
        return Ended(message["done"], message["state"])
    finally:
        process.send("end", activity=key)


def _checked(program: FileProgram, message: Any) -> dict[str, Any]:
    """One that its process may say: what it wants, or how its activity ended."""
    if isinstance(message, dict) and isinstance(message.get("state"), dict):
        kinds = {
            "want": isinstance(message.get("do"), str),
            "failed": isinstance(message.get("failed"), str),
            "done": True,
        }
        if next((known for key, known in kinds.items() if key in message), False):
            return message
    raise program.error(f"its program says what is no message: {message!r:.200}")


async def _give(process: PlayerProcess, key: str, want: dict[str, Any], serve: Serve) -> None:
    """Answers a request of the process. Errors of use are returned to its code; an error that ends the episode is
    raised."""
    try:
        given: dict[str, Any] = {"value": await serve(want)}
    except (ValueError, TypeError, OtherModelError) as wrong:
        given = {"error": str(wrong) or type(wrong).__name__, "kind": want["do"]}
    await process.ask("give", activity=key, want=want["want"], **given)


@contextlib.asynccontextmanager
async def _first_error() -> AsyncIterator[None]:
    """The single error inside of an exception group, because an episode ends by one error."""
    try:
        yield
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


def _process_of(program: FileProgram) -> PlayerProcess:
    """The process for this event loop."""
    return scorers.helper_of(str(program.command), lambda: PlayerProcess(program))
