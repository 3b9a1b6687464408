"""Runs the probes of the contract kit on one environment.

Invariants:
- An episode of the kit is one of a run: the same loop, tools, limits and scorers; only a script takes the place of the
  model, and nothing is stored.
- A tool that hangs or ends its process is reported once, and is not called by later probes.
- Episodes are compared with others of the same row and the same script only.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from agentrl.chat.tool_specs import ToolSpec
from agentrl.config.data_plane import Rollout
from agentrl.environments import user_places
from agentrl.environments.environment import Environment
from agentrl.environments.other_models import OtherModelError
from agentrl.environments.rubric import NoNumberError, Score
from agentrl.environments.user_code_guard import Late
from agentrl.environments.user_places import Place
from agentrl.environments.user_tasks import BlockedError, UserExitError
from agentrl.policies.outcomes import Outcome
from agentrl.rollout import trial
from agentrl.rollout.contract import leaks, script
from agentrl.rollout.contract.findings import Findings
from agentrl.rollout.contract.scripted_model import ScriptedModel
from agentrl.rollout.contract.tool_preflight import Preflight
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.episode_run import Surroundings
from agentrl.rollout.scorers import UnscoredError
from agentrl.rollout.trial import Acted
from agentrl.rollout.user_code_faults import described
from agentrl.store.documents import Task
from agentrl.toolbox.api_messages import ToolInfo
from agentrl.toolbox.client import ToolboxClient
from agentrl.toolservers.user_names import HIDDEN_TOOLS, NO_JSON, SETUP_TOOL, STATE_TOOL, Session, has_life

MOST_ROWS = 4
"""Rows that are tried one by one."""
CANCELLED_WITHIN_S = 2.0
SETTLES_WITHIN_S = 1.0
_LEAST_LEFT = 0.5
"""Leftovers are a leak only if there are at least this many of them per episode."""


class StuckError(Exception):
    """An episode does not end, so its process has to."""


class Seen(NamedTuple):
    """What an episode did, to be compared with another one."""

    outcome: str
    prompts: tuple[tuple[int, ...], ...]
    calls: tuple[tuple[str, str, str], ...]
    """Tool, arguments and result of each call."""


class Kit:
    def __init__(
        self,
        around: Surroundings,
        name: str,
        tasks: Sequence[Task],
        model: ScriptedModel,
        toolbox: ToolboxClient | None,
        findings: Findings,
        *,
        declared: Environment | None,
        at_most_s: float,
        side_by_side: int,
        begun: leaks.Begun,
        own_children: frozenset[int],
    ) -> None:
        """`declared` is the environment of a Python file. `own_children` are processes of agentrl."""
        self._around = around
        self._config = around.config.environments[name]
        self._tasks = list(tasks)
        self._model = model
        self._toolbox = toolbox
        self._findings = findings
        self._at_most_s = at_most_s
        self._side_by_side = side_by_side
        self._begun = begun
        self._own_children = own_children
        functions = declared.functions if declared else ()
        self._tool_places = {
            each.__name__: place for each in functions if (place := user_places.of_function(each)) is not None
        }
        self._state_place = _class_of_state(functions)
        self._agent_place = user_places.of_function(declared.agent) if declared and declared.agent else None
        self._scorers = declared.scorers if declared else ()
        self._usable: list[ToolInfo] = []
        self._numbers = itertools.count(1)
        self.hopeless = False
        """Its code hangs or blocks, so further probes would take long and find the same."""
        self._reference: dict[str, tuple[Seen, Score | None]] = {}

    @property
    def probes(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """The probes in their order, by name."""
        return {
            "names": self.names,
            "tools": self.tools,
            "the same again": self.determinism,
            "hostile turns": self.hostility,
            "cancellation": self.cancellation,
            "side by side": self.crowd,
        }

    # ---- probes ----

    async def names(self) -> None:
        for scorer in self._scorers:
            if not scorer.name.isprintable() or len(scorer.name) > 64 or "/" in scorer.name or not scorer.name:
                place = user_places.of_function(scorer.function)
                self._findings.add("names", f"the name {scorer.name!r} of a scorer cannot be shown in a column", place)

    async def tools(self) -> None:
        """Every tool is called once, or said to be untried."""
        if self._toolbox is None:
            return
        servers = self._config.tools
        listed = [each for each in await self._toolbox.tools() if each.server in servers]
        effects = {name: self._around.config.tools[name].effects for name in servers}
        preflight = Preflight(self._toolbox, self._findings, self._tool_places, self._at_most_s)
        offered = [each for each in listed if each.name not in HIDDEN_TOOLS]
        setups = {each.server: self._setup(offered, each.server) for each in listed if each.name == SETUP_TOOL}
        self._usable = await preflight.run(offered, effects, setups)
        for server, setup in setups.items():
            await preflight.life(server, setup, self._state_place)

    def _setup(self, tools: Sequence[ToolInfo], server: str) -> dict[str, Any]:
        """The data from which a tool server makes the state of a session."""
        task = self._tasks[0]
        names = [each.name for each in tools if each.server == server]
        return {"query": task.query, "truth": task.answer, "row": task.extra, "tools": names}

    async def determinism(self) -> None:
        """The same row and the same turns give the same episode and the same score, also when it is scored again."""
        for task in self._tasks[:MOST_ROWS]:
            first = await self._ended(task)
            second = None if first is None else await self._ended(task)
            if first is None or second is None:
                return
            scores: list[Score | None] = []
            for each in (first, first, second):
                scores.append(await self._scored(each, "a right answer"))
                if scores[-1] is None or self.hopeless:
                    return
            seen = self._compare(self._seen(first), self._seen(second), "when the same is said again")
            if self._compare_scores(scores) and seen:
                self._reference[task.id] = (self._seen(first), scores[0])

    async def hostility(self) -> None:
        """An episode ends and is scored, whatever the model says."""
        task = self._tasks[0]
        for what, texts in script.hostile(self._config.parser, self._specs, task.answer_schema).items():
            acted = await self._ended(task, texts, what)
            if acted is not None:
                await self._scored(acted, what)
            if self.hopeless:
                return

    async def cancellation(self) -> None:
        """A cancelled episode ends promptly, wherever it is."""
        await self._cancel_in_model()
        await self._cancel_in_score()

    async def crowd(self) -> None:
        """Episodes in parallel do what each of them does alone, and leave nothing behind."""
        tasks = [task for task in self._tasks if task.id in self._reference] or self._tasks[:1]
        before = leaks.held(own_children=self._own_children)
        self._begun.clear()
        chosen = [tasks[number % len(tasks)] for number in range(self._side_by_side)]
        acted = await asyncio.gather(*(self._ended(task) for task in chosen))
        ended = [each for each in acted if each is not None]
        scores = await asyncio.gather(*(self._scored(each, "a right answer") for each in ended))
        for each, score in zip(ended, scores, strict=True):
            if (known := self._reference.get(each.task.id)) is not None:
                self._compare_with_alone(known, (self._seen(each), score))
        await self._look_for_leaks(before, len(ended))

    # ---- episodes ----

    @property
    def _specs(self) -> list[ToolSpec]:
        return [ToolSpec(name=each.name, description=each.description, schema=each.schema) for each in self._usable]

    def _begin(self, task: Task, texts: Sequence[str] | None) -> tuple[str, asyncio.Task[Acted]]:
        number = next(self._numbers)
        record = f"{task.id}/{number}"
        right = script.answered(task.answer_schema, task.answer)
        turns = list(texts) if texts is not None else script.usual(self._config.parser, self._specs, right)
        self._model.write(record, turns)
        settings = Rollout(
            max_turns=max(len(turns) + 2, self._config.max_turns),
            call_s=self._at_most_s,
            tool_s=self._at_most_s,
            episode_s=self._at_most_s + len(turns),
        )
        acting = trial.act_once(self._around, task, number, settings, lambda call: None)
        return record, asyncio.create_task(acting, name=record)

    async def _ended(
        self, task: Task, texts: Sequence[str] | None = None, what: str = "a right answer"
    ) -> Acted | None:
        """The episode; None if it ended in a way that the contract forbids."""
        _, acting = self._begin(task, texts)
        limit_s = 2 * self._at_most_s + CANCELLED_WITHIN_S + len(texts or ())
        await self._end_of(acting, limit_s, "agent-hangs", f"the agent does not end after {what}")
        acted = acting.result()
        return acted if self._is_fine(acted, what) else None

    def _is_fine(self, acted: Acted, what: str) -> bool:
        ended = acted.ended
        for left in acted.episode.left_behind:
            self._findings.add("leaks-tasks", "the agent ends while a task of it is still at work", left)
        for _, call in acted.calls:
            if call.tool == STATE_TOOL and NO_JSON in call.result:
                self._findings.add("state-no-json", f"the state of the tools cannot be stored: {call.result}")
        if ended.outcome in (Outcome.TIME_LIMIT, Outcome.EPISODE_TIMEOUT):
            sentence = f"the agent does not end within {self._at_most_s:g} s after {what}"
            self._findings.add("agent-hangs", sentence, self._agent_place)
            self.hopeless = True
            return False
        if ended.outcome is not Outcome.LOOP_FAILED:
            return True
        place = _place(ended) or self._agent_place
        if "must return an Outcome" in ended.error:
            self._findings.add(
                "agent-outcome", f"the agent ends with something else than an outcome: {ended.error}", place
            )
        else:
            self._failed("agent-fails", f"the agent fails after {what}", ended, place)
        return False

    def _failed(self, name: str, sentence: str, wrong: BaseException, place: Place | None) -> None:
        cause = _root(wrong)
        if isinstance(cause, UserExitError | SystemExit | KeyboardInterrupt):
            name = "ends-process"
        elif isinstance(cause, BlockedError):
            name, self.hopeless = "blocks", True
        elif isinstance(cause, TimeoutError) and name == "scorer-fails":
            name = "scorer-hangs"
        elif isinstance(cause, NoNumberError):
            name, place = "scorer-no-number", user_places.of_function(cause.scorer.function)
        self._findings.add(name, f"{sentence}: {described(cause)}", place)

    async def _scored(self, acted: Acted, what: str) -> Score | None:
        scoring = asyncio.create_task(acted.score(), name=f"score of {acted.recorder.record.id}")
        sentence = f"a scorer does not end after {what}"
        await self._end_of(scoring, 2 * self._at_most_s, "scorer-hangs", sentence, scorer=True)
        try:
            found = scoring.result()
        except UnscoredError as cannot:
            if isinstance(cause := _root(cannot), OtherModelError):
                self._findings.add("untried", f"a scorer is untried: {cause}", level="note")
                return None
            self._failed("scorer-fails", f"a scorer fails on {what}", cannot, _place(cannot))
            return None
        except asyncio.CancelledError:
            return None
        for name in found.parts if found else ():
            if not name.isprintable() and name not in {each.name for each in self._scorers}:
                self._findings.add("names", f"the name {name!r} of a part of a score cannot be shown in a column")
        return found

    async def _end_of(
        self, work: asyncio.Task[Any], limit_s: float, name: str, sentence: str, *, scorer: bool = False
    ) -> None:
        """Waits for the end, and cancels work that does not end in time. Raises StuckError for an agent that hung, and
        for a scorer that does not even end when it is cancelled: their process must be replaced."""
        await asyncio.wait([work], timeout=limit_s)
        if work.done():
            return
        place = _waits_at(work) or (None if scorer else self._agent_place)
        self._findings.add(name, f"{sentence} within {limit_s:g} s", place)
        self.hopeless = True
        work.cancel()
        await asyncio.wait([work], timeout=CANCELLED_WITHIN_S)
        if not work.done() or not scorer:
            raise StuckError(sentence)

    # ---- comparing ----

    def _seen(self, acted: Acted) -> Seen:
        calls = tuple(
            (call.tool, repr(sorted(call.arguments.items())), f"{call.status}: {call.result}")
            for _, call in acted.calls
        )
        prompts = tuple(self._model.prompts.get(acted.recorder.record.id, ()))
        return Seen(str(acted.ended.outcome), prompts, calls)

    def _compare(self, one: Seen, other: Seen, when: str) -> bool:
        """Whether they are the same."""
        if one == other:
            return True
        for (tool, arguments, result), (tool2, arguments2, result2) in zip(one.calls, other.calls, strict=False):
            if (tool, arguments) == (tool2, arguments2) and result != result2:
                sentence = f"the tool {tool} gives something else {when}: {result[:100]} and {result2[:100]}"
                self._findings.add("tool-differs", sentence, self._tool_places.get(tool))
                return False
        what = f"{_summary(one)} and {_summary(other)}"
        self._findings.add("agent-differs", f"the agent does something else {when}: {what}", self._agent_place)
        return False

    def _compare_scores(self, scores: Sequence[Score | None]) -> bool:
        first, again, other = scores
        assert first is not None
        for score, when in ((again, "when the same episode is scored again"), (other, "of the same turns")):
            if score is not None and score != first:
                scorer = next(
                    (each for each in self._scorers if _part(score, each.name) != _part(first, each.name)), None
                )
                place = user_places.of_function(scorer.function) if scorer else None
                name = f"the scorer {scorer.name}" if scorer else "the score"
                self._findings.add("scorer-differs", f"{name} gives another number {when}", place)
                return False
        return True

    def _compare_with_alone(self, alone: tuple[Seen, Score | None], crowd: tuple[Seen, Score | None]) -> None:
        if alone == crowd:
            return
        (seen, score), (seen2, score2) = alone, crowd
        for (tool, _, result), (tool2, _, result2) in zip(seen.calls, seen2.calls, strict=False):
            if tool == tool2 and result != result2:
                sentence = (
                    f"the tool {tool} gives something else beside other episodes: {result[:100]} and {result2[:100]}"
                )
                self._findings.add("shared-state", sentence, self._tool_places.get(tool))
                return
        if seen == seen2:
            what = f"a score is {score.value if score else None} alone and {score2.value if score2 else None}"
        else:
            what = f"the agent does {_summary(seen)} alone and {_summary(seen2)}"
        self._findings.add("shared-state", f"{what} beside other episodes", self._agent_place)

    def late(self, late: Late) -> None:
        """The event loop stood still."""
        where = f"the code blocks all other episodes for {late.seconds:.2f} s"
        self._findings.add("blocks", where, late.place)
        self.hopeless = True

    # ---- cancelling ----

    async def _cancel_in_model(self) -> None:
        record, acting = self._begin(self._tasks[0], None)
        held = self._model.hold(record)
        holding = asyncio.create_task(held.wait(), name="held")
        await asyncio.wait([acting, holding], timeout=self._at_most_s, return_when=asyncio.FIRST_COMPLETED)
        holding.cancel()
        if not acting.done():
            await self._cancelled(acting, "the agent", self._agent_place)
        self._model.forget(record)

    async def _cancel_in_score(self) -> None:
        acted = await self._ended(self._tasks[0])
        if acted is None:
            return
        scoring = asyncio.create_task(acted.score(), name="a score that is cancelled")
        for _ in range(10):
            await asyncio.sleep(0)
        if not scoring.done():
            await self._cancelled(scoring, "a scorer", _waits_at(scoring))
        elif not scoring.cancelled():
            scoring.exception()  # Another probe has reported it.

    async def _cancelled(self, work: asyncio.Task[Any], who: str, place: Place | None) -> None:
        at = _waits_at(work) or place
        work.cancel()
        await asyncio.wait([work], timeout=CANCELLED_WITHIN_S)
        if not work.done():
            self._findings.add("keeps-on-after-cancel", f"{who} does not end when its episode is cancelled", at)
            raise StuckError(who)
        if not work.cancelled():
            work.exception()
            self._findings.add("keeps-on-after-cancel", f"{who} goes on when its episode is cancelled", at)

    # ---- leaks ----

    async def _look_for_leaks(self, before: leaks.Held, episodes: int) -> None:
        most = max(3, int(_LEAST_LEFT * episodes))
        growth: dict[str, int] = {}
        until = asyncio.get_running_loop().time() + SETTLES_WITHIN_S
        while True:
            now = leaks.held(own_children=self._own_children)
            growth = {name: count for name, count in now.growth(before).items() if count >= most}
            of_tools = {name: count - before.tools.get(name, 0) for name, count in now.tools.items()}
            of_tools = {name: count for name, count in of_tools.items() if count >= most}
            if not (growth or of_tools) or asyncio.get_running_loop().time() > until:
                break
            await asyncio.sleep(0.05)
        for name, count in growth.items():
            place = self._begun.most(name)
            self._findings.add(name, f"{episodes} episodes leave {count} {leaks.WORDS[name]} behind", place)
        for name, count in of_tools.items():
            place = next(iter(self._tool_places.values()), None)
            sentence = f"after {episodes} episodes the process of the tools has {count} more {leaks.WORDS[name]}"
            self._findings.add(name, sentence, place)


def _root(wrong: BaseException) -> BaseException:
    """The exception that the user's code raised."""
    while wrong.__cause__ is not None and isinstance(wrong, UnscoredError | EndedError | UserExitError):
        wrong = wrong.__cause__
    return wrong


def _place(wrong: BaseException) -> Place | None:
    return user_places.of_traceback(_root(wrong).__traceback__)


def _waits_at(work: asyncio.Task[Any]) -> Place | None:
    """The innermost line of a user where a task waits."""
    found: Place | None = None
    inner: Any = work.get_coro()
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "ag_frame", None)
        if frame is not None and user_places.is_users(frame.f_code.co_filename):
            found = Place(frame.f_code.co_filename, frame.f_lineno)
        inner = getattr(inner, "cr_await", None) or getattr(inner, "ag_await", None)
    return found


def _class_of_state(functions: Sequence[Callable[..., Any]]) -> Place | None:
    """The class of a session whose objects are set up or torn down."""
    for function in functions:
        for hint in inspect.unwrap(function).__annotations__.values():
            kind = inspect.unwrap(function).__globals__.get(hint, hint) if isinstance(hint, str) else hint
            if isinstance(kind, type) and issubclass(kind, Session) and has_life(kind):
                return user_places.of_function(getattr(kind, "setup", None) or getattr(kind, "teardown", None))
    return None


def _summary(seen: Seen) -> str:
    return f"{len(seen.prompts)} turns with {len(seen.calls)} tool calls to the outcome {seen.outcome}"


def _part(score: Score, name: str) -> dict[str, float]:
    return {part: value for part, value in score.parts.items() if part == name or part.startswith(f"{name}/")}
