"""The environment of a Python file in its own process, with its own Python: its agent and scorers run here.

They request what they need from the sampler (turns of the model, calls of tools, other models): `next` returns a
request, and `give` brings its answer. `agentrl.adapters.programs.main` reads the requests and writes the answers.

Invariants:
- The agent and the scorers are those that the file declares, and are called as in a sampler.
- An activity ends with `done` or `failed`, or when its sampler ends it; then its task is cancelled.
- Code that holds up or would end this process costs its own activity only, as in a sampler.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import inspect
import itertools
import json
import sys
import traceback
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.environments import conversation, other_models, rubric, user_tasks
from agentrl.environments.environment import declared
from agentrl.environments.episodes import Episode, ToolCall
from agentrl.environments.other_models import Asked, OtherModel, OtherModelError
from agentrl.environments.user_code_guard import Late, LoopWatch, no_exit
from agentrl.environments.user_tasks import BlockedError, UncancelledError, UserExitError, UserTasks, uncancelled
from agentrl.toolservers import user_files
from agentrl.toolservers.user_names import NO_JSON, Image

MODULE = "environment_of_the_run"
TEARDOWN_WITHIN_S = 10.0
MAIN = ""
"""The name of the agent's own conversation."""


@dataclass(frozen=True)
class Call:
    """A call that a turn of the model asks for."""

    name: str
    arguments: Mapping[str, Any]


class Activity:
    """One episode that is played or scored."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.state: dict[str, Any] = {}
        self.task: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def want(self, do: str, **fields: Any) -> Any:
        """Sends a request to the sampler and returns its answer."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self.messages.put_nowait({"want": number, "do": do, "state": self.state, **fields})
        try:
            return await answer
        finally:
            del self._waiting[number]

    def give(self, want: int, value: Any, error: str, kind: str) -> None:
        waiting = self._waiting.get(want)
        if waiting is None or waiting.done():
            return
        if error:
            waiting.set_exception(OtherModelError(error) if kind == "ask" else ValueError(error))
        else:
            waiting.set_result(value)

    async def run(self, work: Awaitable[Any], file: str) -> None:
        tasks = UserTasks()
        try:
            with tasks.noted():
                returned = await work
            self.messages.put_nowait({"done": returned, "state": _plain(self.state)})
        except asyncio.CancelledError as raised:
            self._fail(uncancelled(raised), file)
        except BaseException as broken:  # noqa: BLE001 - the code of a user may raise anything, SystemExit too
            self._fail(broken, file)
        finally:
            await tasks.end()

    def _fail(self, broken: BaseException, file: str) -> None:
        self.messages.put_nowait({"failed": _described(broken, file), "state": self.state})

    async def ask(self, name: str, asked: Asked, *, purpose: str) -> str:
        """Asks another model, through the sampler."""
        fields = {"temperature": asked.temperature, "max_tokens": asked.max_tokens, "salt": asked.salt}
        messages = [dict(message) for message in asked.messages]
        return str(await self.want("ask", name=name, messages=messages, purpose=purpose, **fields))


class Conversation(conversation.Conversation):
    def __init__(
        self, activity: Activity, given: Mapping[str, Any], name: str = MAIN, system: str | None = None
    ) -> None:
        self._activity, self._given = activity, given
        self._where = {"branch": name, "system": system}
        self._names = {MAIN}

    @property
    def query(self) -> str:
        return str(self._given["query"])

    @property
    def row(self) -> Mapping[str, Any]:
        return dict(self._given["row"])

    @property
    def state(self) -> dict[str, Any]:
        return self._activity.state

    @property
    def tools(self) -> tuple[str, ...]:
        return tuple(self._given["tools"])

    def branch(self, name: str, *, system: str | None = None) -> Conversation:
        if name in self._names or not name:
            raise ValueError(f"a branch needs a name that no other conversation of the episode has, and not {name!r}")
        self._names.add(name)
        beside = Conversation(self._activity, self._given, name, system)
        beside._names = self._names
        return beside

    async def chat(self, message: str | None = None, *, results: Sequence[str] = ()) -> conversation.Reply:
        made = await self._activity.want("chat", message=message, results=list(results), **self._where)
        calls = tuple(Call(name, arguments) for name, arguments in made["calls"])
        return conversation.Reply(made["text"], calls, tuple(made["errors"]))

    async def results_of(self, reply: conversation.Reply) -> list[str]:
        calls = [[call.name, dict(call.arguments)] for call in reply.calls]
        return list(await self._activity.want("results_of", calls=calls, errors=list(reply.errors), **self._where))

    async def images(self, text: str | None = None) -> list[Image]:
        found = await self._activity.want("images", text=text, **self._where)
        return [Image(base64.b64decode(each)) for each in found]

    async def text_of(self, image: Image) -> str:
        data = base64.b64encode(image.data).decode()
        return str(await self._activity.want("text_of", data=data, **self._where))

    def other(self, name: str, *, purpose: str = "agent") -> OtherModel:
        return OtherModel(name, purpose=purpose, asker=self._activity)

    async def call(self, tool: str, **arguments: Any) -> str:
        return str(await self._activity.want("call", tool=tool, arguments=arguments, **self._where))


class Environment:
    """All activities of one environment; its async methods are the requests."""

    serves = True

    def __init__(self, file: str, name: str) -> None:
        user_files.load(Path(file), MODULE, first=True)
        user_tasks.install()
        self._guards = contextlib.ExitStack()
        self._guards.enter_context(LoopWatch(_report))
        self._guards.enter_context(no_exit())
        self._file = file
        self._environment = next(each for each in declared() if each.name == name)
        self._activities: dict[str, Activity] = {}
        self.ending: set[asyncio.Task[None]] = set()
        """Tasks of activities that were ended and whose teardown still runs."""

    async def begin(self, *, activity: str, kind: str, given: dict[str, Any]) -> None:
        made = self._activities[activity] = Activity()
        work = self._acted(made, given) if kind == "act" else self._scored(made, given)
        made.task = asyncio.create_task(made.run(work, self._file), name=f"{kind} {activity}")

    async def next(self, *, activity: str) -> Any:
        return await self._activities[activity].messages.get()

    async def give(self, *, activity: str, want: int, value: Any = None, error: str = "", kind: str = "") -> None:
        if (made := self._activities.get(activity)) is not None:
            made.give(want, value, error, kind)

    async def end(self, *, activity: str) -> None:
        made = self._activities.pop(activity, None)
        if made is not None and made.task is not None:
            self.ending.add(made.task)
            made.task.add_done_callback(self.ending.discard)
            made.task.cancel()
            made.messages.put_nowait({"failed": "its episode ended"})  # Wakes a `next` that waits.

    async def _acted(self, activity: Activity, given: Mapping[str, Any]) -> Any:
        """Runs setup, agent and teardown. Returns the outcome; None if it follows from the last turn."""
        other_models.provide(activity)
        mine = Conversation(activity, given)
        environment = self._environment
        try:
            await _lived(environment.setup, mine)
            if environment.agent is None:
                return await activity.want("tool_agent")
            outcome = await environment.agent(mine)
            return None if outcome is None else str(getattr(outcome, "value", outcome))
        finally:
            # If the episode was ended or handed over, the teardown gets no answers, so its time is limited.
            async with asyncio.timeout(TEARDOWN_WITHIN_S):
                await _lived(environment.teardown, mine)

    async def _scored(self, activity: Activity, given: dict[str, Any]) -> Any:
        other_models.provide(activity)
        episode = Episode(**given | {"calls": [ToolCall(**call) for call in given["calls"]]})
        found = await rubric.score_of(self._environment.scorers, episode)
        return {"value": found.value, "parts": dict(found.parts), "turns": list(found.turns)}


def _plain(state: dict[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError, RecursionError) as wrong:
        raise TypeError(f"episode.state {NO_JSON}: {wrong}") from None


async def _lived(function: Any, mine: Conversation) -> None:
    if function is not None and inspect.isawaitable(done := function(mine)):
        await done


def _described(broken: BaseException, file: str) -> str:
    own = [frame.lineno for frame in traceback.extract_tb(broken.__traceback__) if frame.filename == file]
    place = f" ({Path(file).name}, line {own[-1]})" if own else ""
    message = " ".join(str(broken).split())
    if isinstance(broken, UserExitError | BlockedError | UncancelledError):
        return message + place
    return f"{type(broken).__name__}: {message}".rstrip(": ") + place


def _report(late: Late) -> None:
    """For the log of the sampler."""
    ended = " and was interrupted" if late.interrupted else ""
    print(f"it held up all its episodes for {late.seconds:.1f} s{ended} ({late.place})", file=sys.stderr)
