"""What an agent loop works with: the first prompt, model calls, tool calls, and the limits around them.

Invariants: a turn is one logical model call with the tool calls that it caused, and is stored when the next one begins
or the episode ends; model calls of one branch of an episode follow each other; the tokens of a trajectory are sampled
ids and separately tokenised segments of the environment; after a hand-over a loop gets the same answers as before from
the store, until it is where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from agentrl.chat import tool_call_parsers
from agentrl.chat.jinja_rendering import Message
from agentrl.chat.own_template import answered
from agentrl.chat.template import Template
from agentrl.chat.tool_call_parsers import Call, Parsed
from agentrl.chat.tool_specs import ToolSpec
from agentrl.config.data_plane import Environment
from agentrl.environments.user_places import Place
from agentrl.images.processing import ImageError
from agentrl.policies.context_strategies import Segment
from agentrl.policies.outcomes import Outcome
from agentrl.policies.sampling_rule import SamplingRule
from agentrl.policies.sampling_seeds import sampling_seed
from agentrl.rollout import tool_summaries
from agentrl.rollout.context_editing import ContextEditor
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.episode_recorder import Recorder
from agentrl.rollout.model_calls import ModelCalls, ModelRequest
from agentrl.rollout.other_models import EpisodeModels
from agentrl.rollout.shown_images import EpisodeImages
from agentrl.rollout.tool_calls import ToolCalls
from agentrl.store.documents import ParsedCall, Task
from agentrl.toolservers.user_names import SET_UP, SETUP_TOOL, STATE_TOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that were in force when the episode was claimed."""

    max_turns: int
    max_tokens: int
    """The most tokens of one model call."""
    context: int
    """The most tokens of prompt and output together."""
    rule: SamplingRule


MAIN = ""
"""The branch of the agent itself."""
SECOND_CALL = (
    "`episode.model` was called while another model call of this branch was running: await one before the next, or give"
    " each its own branch"
)


class Reply(NamedTuple):
    """The output of the model in one turn."""

    ids: list[int]
    text: str
    """Without the token that ended it."""
    ended: bool
    """False if it was cut off."""
    parsed: Parsed


class Episode:
    """ModelAnswer by the sampler for one attempt at a seat."""

    def __init__(
        self,
        task: Task,
        environment: Environment,
        *,
        limits: Limits,
        template: Template,
        recorder: Recorder,
        model_calls: ModelCalls,
        tool_calls: ToolCalls,
        images: EpisodeImages,
        random: int,
        others: EpisodeModels | None = None,
    ) -> None:
        """`random` is the seed of the run, from which the seed of every call is derived. `others`: models besides the
        trained one."""
        self.task = task
        self.environment = environment
        self.limits = limits
        self.template = template
        self.recorder = recorder
        self._texts: dict[int, str] = {}
        self._branches: list[str] = []
        """The branch of each turn that has begun."""
        self.malformed_turns = 0
        self.left_behind: list[Place] = []
        """Where the loop created asyncio tasks that were still running when it ended."""
        self._history: list[Message] = []
        """Turns and results after the query, if the template writes them again."""
        self.images = images
        self._models, self._tools = model_calls, tool_calls
        self._random = random
        self.others = others
        self.context = ContextEditor(
            environment.context,
            environment.context.budget or max(limits.context - limits.max_tokens, limits.context // 2),
            template,
            self._first_prompt,
            others,
            task.query,
            lambda: images.tokens,
        )
        self._open: dict[str, int] = {}
        """By branch, the index of the turn that is not over."""
        self._callers: set[asyncio.Task[object]] = set()
        """Asyncio tasks of the loop that wait for a model call or tool calls."""
        self._busy: set[str] = set()
        """Branches that wait for the model."""
        self._stopped = False
        self._setting_up, self._is_set_up = asyncio.Lock(), False

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model is offered."""
        return self._tools.offer.specs

    def _hidden(self, tool: str) -> list[str]:
        """The full names of a hidden tool, of each server that has it."""
        return [name for name, place in self._tools.offer.hidden.items() if place[1] == tool]

    @property
    def texts(self) -> list[str]:
        """What the model wrote, turn by turn, in all branches."""
        return [self._texts[turn] for turn in sorted(self._texts)]

    @property
    def branches(self) -> list[str]:
        """The branch of each of the texts."""
        return [self._branches[turn] for turn in sorted(self._texts)]

    @property
    def answered_turns(self) -> list[int]:
        """The numbers of the texts' turns."""
        return sorted(self._texts)

    @property
    def last_text(self) -> str:
        """What the agent itself wrote last; empty if it wrote nothing."""
        own = [turn for turn in self._texts if self._branches[turn] == MAIN]
        return self._texts[max(own)] if own else ""

    @property
    def turns(self) -> int:
        return len(self._branches)

    async def prepare(self) -> None:
        """Loads the images of the task. The episode ends here if the model cannot be shown one of them."""
        await self.show(*(one.content for one in self.task.earlier), self.task.query)

    async def show(self, *texts: str) -> None:
        """Loads the images that these texts name, before they are part of a prompt."""
        try:
            await self.images.load(*texts)
        except ImageError as wrong:
            raise EndedError(Outcome.IMAGE_REFUSED, wrong.message) from wrong

    def first_prompt(self) -> list[int]:
        """System prompt, tools, earlier messages and the query, up to where the assistant begins."""
        return self._first_prompt("")

    def _first_prompt(self, notes: str) -> list[int]:
        system, earlier = self._instructions()
        tokens = self.images.tokens
        return self.template.first(system, self.tools, self.task.query + notes, earlier=earlier, images=tokens)

    def user_ids(self, message: str, *, ended: bool) -> list[int]:
        """A message of the user after a turn."""
        return self.template.user(message, ended=ended, images=self.images.tokens)

    def result_ids(self, reply: Reply, results: Sequence[str]) -> list[int]:
        """Results of tools after the turn that called them."""
        tokens = self.images.tokens
        return self.template.tool_results(results, calls=reply.parsed.calls, ended=reply.ended, images=tokens)

    def after_user(self, prompt: Sequence[int], reply: Reply, message: str) -> list[int]:
        """The next prompt: what was sampled, and a message of the user."""
        ids = self.user_ids(message, ended=reply.ended)
        return self.context.extended(prompt, reply.ids, Segment("user", ids, [message], ended=reply.ended))

    def after_tools(self, prompt: Sequence[int], reply: Reply, results: Sequence[str]) -> list[int]:
        """The next prompt: what was sampled and these results, or the conversation as the template writes it now."""
        calls = reply.parsed.calls
        tokens = self.images.tokens
        ids = self.result_ids(reply, results)
        added = Segment("results", ids, list(results), calls, reply.ended)
        sampled = self.context.extended(prompt, reply.ids, added)
        if self.environment.history == "sampled":
            return sampled
        known = [*calls, *([Call("unknown")] * (len(results) - len(calls)))]
        self._history.append(self.template.said(reply.text, reply.parsed.content, calls))
        self._history += [
            answered(text, call, number) for number, (text, call) in enumerate(zip(results, known, strict=True))
        ]
        system, earlier = self._instructions()
        listed = [{"role": role, "content": text} for role, text in (*earlier, ("user", self.task.query))]
        return self.template.rewritten(sampled, system, self.tools, [*listed, *self._history], images=tokens)

    def _instructions(self) -> tuple[str, list[tuple[str, str]]]:
        """The system prompt, and the messages before the query."""
        earlier = [(one.role, one.content) for one in self.task.earlier]
        system = earlier.pop(0)[1] if earlier and earlier[0][0] == "system" else self.environment.system
        return system, earlier

    async def model(self, prompt: Sequence[int], *, may_be_cut: bool = False, branch: str = MAIN) -> Reply:
        """The next turn of a branch. The episode ends here if a limit allows no further turn.

        It also ends at a reply that is cut off by `max_tokens`; with `may_be_cut` the loop gets it (`ended` is false).
        """
        if branch in self._busy:
            raise EndedError(Outcome.LOOP_FAILED, SECOND_CALL)
        self._busy.add(branch)
        try:
            with self._calling():
                fitted = await self.context.fitted(list(prompt), self._notes) if branch == MAIN else list(prompt)
                return await self._model(fitted, may_be_cut=may_be_cut, branch=branch)
        finally:
            self._busy.discard(branch)

    async def _model(self, prompt: list[int], *, may_be_cut: bool, branch: str) -> Reply:
        index = self.turns
        if index >= self.limits.max_turns:
            raise EndedError(Outcome.TURN_LIMIT)
        room = self.limits.context - len(prompt)
        if room <= 0:
            raise EndedError(Outcome.CONTEXT_FULL if index else Outcome.PROMPT_TOO_LONG)
        self._close_turn(branch)
        self._branches.append(branch)
        began = datetime.now(UTC)
        made = await self._models.make(self._wanted(index, prompt, min(self.limits.max_tokens, room), branch))
        ended = made.finish == "stop" and bool(made.ids) and made.ids[-1] in self.template.stop_ids
        text = self.template.tokenizer.decode(made.ids[:-1] if ended else made.ids)
        parsed = tool_call_parsers.parse(self.environment.parser, text, self.tools)
        self._texts[index] = text
        self._open[branch] = index
        self.recorder.parsed(index, text, _parsed_calls(parsed), began)
        full = room <= self.limits.max_tokens
        if made.finish == "length" and (full or not may_be_cut):
            raise EndedError(Outcome.CONTEXT_FULL if full else Outcome.TOKEN_LIMIT)
        return Reply(made.ids, text, ended, parsed)

    async def _notes(self, prompt: list[int]) -> str:
        """A turn in which the model writes down what it knows."""
        reply = await self._model(prompt, may_be_cut=True, branch=MAIN)
        return reply.text

    async def call_tools(self, calls: Sequence[Call], *, branch: str = MAIN) -> list[str]:
        """Makes all calls at once; returns their results in the order of the calls. A call of a hidden tool is refused
        like a call of an unknown tool, because a model may have written it."""
        with self._calling():
            results = await self._tools.run(await self._turn_with_state(branch), calls)
            if self.others is None:
                return results
            return await tool_summaries.of_results(self.others, self.task.query, calls, results)

    async def call_hidden(self, tool: str, arguments: dict[str, Any] | None = None) -> list[str]:
        """Calls a hidden tool of each server that has it, after a turn of the agent itself. No model wrote the call."""
        calls = [Call(name, arguments or {}) for name in self._hidden(tool)]
        if not calls:
            return []
        with self._calling():
            return await self._tools.run(await self._turn_with_state(MAIN), calls, hidden=True)

    async def _turn_with_state(self, branch: str) -> int:
        """The turn of the branch. Before it returns, the tools have made their state."""
        turn = self._open.get(branch)
        assert turn is not None, "tools are called by a turn"
        async with self._setting_up:
            if not self._is_set_up:
                await self._set_up(turn)
                self._is_set_up = True
        return turn

    async def _set_up(self, turn: int) -> None:
        """Lets the tools of Python files make their state. This is the first call of a session, so a replay makes it
        too."""
        names = self._hidden(SETUP_TOOL)
        if not names:
            return
        places = self._tools.offer.hidden
        calls = [Call(name, self._given_to(places[name][0])) for name in names]
        for name, result in zip(names, await self._tools.run(turn, calls, hidden=True), strict=True):
            if result != SET_UP:
                raise EndedError(Outcome.TOOL_SERVER_FAILED, f"the setup of {places[name][0]} failed: {result}")

    def _given_to(self, server: str) -> dict[str, Any]:
        """The arguments of that call: the task, and the tools of the server."""
        offered = {tool for of, tool in self._tools.offer.places.values() if of == server}
        task = {"query": self.task.query, "truth": self.task.answer, "row": self.task.extra}
        return {**task, "tools": sorted(offered)}

    async def state_of_tools(self) -> None:
        """Reads the state of the tools and stores it for scorers. Call it only after a turn."""
        if MAIN in self._open:
            await self.call_hidden(STATE_TOOL)

    async def keep_state(self, text: str) -> None:
        """Stores the state of the loop for scorers. Call it only after a turn."""
        if (turn := self._open.get(MAIN)) is not None:
            await self._tools.keep(turn, STATE_TOOL, text)

    def stop(self) -> None:
        """Cancels the calls of asyncio tasks that the loop left behind, because their results belong to no record."""
        self._stopped = True
        for caller in self._callers:
            caller.cancel()

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        if self._stopped:
            raise EndedError(Outcome.LOOP_FAILED, "the episode is over")
        caller = asyncio.current_task()
        assert caller is not None
        self._callers.add(caller)
        try:
            yield
        finally:
            self._callers.discard(caller)

    def over(self) -> None:
        """Ends the last turns of all branches."""
        for branch in list(self._open):
            self._close_turn(branch, last=True)

    def _wanted(self, turn: int, prompt: list[int], most_tokens: int, branch: str) -> ModelRequest:
        record = self.recorder.record

        def seed(call: int, kept: int) -> int:
            return sampling_seed(
                self._random,
                task=self.task.id,
                round=record.round,
                seat=record.seat,
                attempt=record.attempt,
                call=call,
                kept=kept,
            )

        return ModelRequest(
            turn=turn,
            prompt=prompt,
            images=self.images.in_prompt(prompt),
            rule=self.limits.rule,
            most_tokens=most_tokens,
            stop_ids=self.template.stop_ids,
            seed=seed,
            version=self.task.version,
            branch=branch,
        )

    def _close_turn(self, branch: str, *, last: bool = False) -> None:
        if (turn := self._open.pop(branch, None)) is not None:
            self.recorder.turn_over(turn, last=last)


def _parsed_calls(parsed: Parsed) -> list[ParsedCall]:
    return [
        *(ParsedCall(name=call.name, arguments=call.arguments) for call in parsed.calls),
        *(ParsedCall(error=error) for error in parsed.errors),
    ]
