"""What an agent loop works with: the first prompt, model calls, tool calls, and the limits around them.

Invariants: a turn is one logical model call with the tool calls that it caused, and is stored when the next one begins
or the episode ends; model calls of one episode follow each other; the tokens of a trajectory are sampled ids and
separately tokenised segments of the environment; a loop that goes on after a hand-over is given the same answers as
before, out of the store, until it is where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from agentrl.chat import tool_call_parsers
from agentrl.chat.jinja_rendering import Message
from agentrl.chat.own_template import answered
from agentrl.chat.template import Template
from agentrl.chat.tool_call_parsers import Call, Parsed
from agentrl.chat.tool_specs import ToolSpec
from agentrl.config.data_plane import Environment
from agentrl.policies.outcomes import Outcome
from agentrl.policies.sampling_rule import SamplingRule
from agentrl.policies.sampling_seeds import sampling_seed
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.episode_recorder import Recorder
from agentrl.rollout.model_calls import ModelCalls, Wanted
from agentrl.rollout.tool_calls import ToolCalls
from agentrl.store.documents import ParsedCall, Task
from agentrl.toolservers.user_names import STATE_TOOL


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What was in force when the episode was claimed."""

    max_turns: int
    max_tokens: int
    """Of one model call."""
    context: int
    """Of prompt and output together."""
    rule: SamplingRule


SECOND_CALL = (
    "`episode.model` was called while another model call of this episode was running: await one before the next, and"
    " use no asyncio.gather for them"
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
    """Made by the sampler for one attempt at a seat."""

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
        random: int,
    ) -> None:
        """`random` is the run's own number, from which every call's follows."""
        self.task = task
        self.environment = environment
        self.limits = limits
        self.template = template
        self.recorder = recorder
        self.texts: list[str] = []
        """What the model wrote, turn by turn."""
        self.malformed_turns = 0
        self._history: list[Message] = []
        """Turns and results after the query, if the template writes them again."""
        self._models = model_calls
        self._tools = tool_calls
        self._random = random
        self._turn: int | None = None
        """The index of the turn that is not over."""
        self._callers: set[asyncio.Task[object]] = set()
        """Tasks of the loop that wait for a model call or tool calls."""
        self._models_busy = False
        self._stopped = False

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """What the model is offered."""
        return tuple(spec for spec in self._tools.offer.specs if spec.name != STATE_TOOL)

    @property
    def keeps_state(self) -> bool:
        """Whether there is a tool that says what the functions of a file keep for this episode."""
        return STATE_TOOL in self._tools.offer.places

    @property
    def turns(self) -> int:
        return len(self.texts)

    def first_prompt(self) -> list[int]:
        """System prompt, tools, earlier messages and the query, up to where the assistant begins."""
        system, earlier = self._instructions()
        return self.template.first(system, self.tools, self.task.query, earlier=earlier)

    def after_tools(self, prompt: Sequence[int], reply: Reply, results: Sequence[str]) -> list[int]:
        """The next prompt: what was sampled and these results, or the conversation as the template writes it now."""
        calls = reply.parsed.calls
        sampled = [*prompt, *reply.ids, *self.template.tool_results(results, calls=calls, ended=reply.ended)]
        if self.environment.history == "sampled":
            return sampled
        known = [*calls, *([Call("unknown")] * (len(results) - len(calls)))]
        self._history.append(self.template.said(reply.text, reply.parsed.content, calls))
        self._history += [
            answered(text, call, number) for number, (text, call) in enumerate(zip(results, known, strict=True))
        ]
        system, earlier = self._instructions()
        listed = [{"role": role, "content": text} for role, text in (*earlier, ("user", self.task.query))]
        return self.template.rewritten(sampled, system, self.tools, [*listed, *self._history])

    def _instructions(self) -> tuple[str, list[tuple[str, str]]]:
        """The system prompt, and the messages before the query."""
        earlier = [(one.role, one.content) for one in self.task.earlier]
        system = earlier.pop(0)[1] if earlier and earlier[0][0] == "system" else self.environment.system
        return system, earlier

    async def model(self, prompt: Sequence[int], *, may_be_cut: bool = False) -> Reply:
        """The next turn. The episode ends here if there may be none.

        It also ends at a reply that is cut off by `max_tokens`; with `may_be_cut` the loop gets it (`ended` is false).
        """
        if self._models_busy:
            raise EndedError(Outcome.LOOP_FAILED, SECOND_CALL)
        self._models_busy = True
        try:
            with self._calling():
                return await self._model(list(prompt), may_be_cut=may_be_cut)
        finally:
            self._models_busy = False

    async def _model(self, prompt: list[int], *, may_be_cut: bool) -> Reply:
        index = self.turns
        self._close_turn()
        if index >= self.limits.max_turns:
            raise EndedError(Outcome.TURN_LIMIT)
        room = self.limits.context - len(prompt)
        if room <= 0:
            raise EndedError(Outcome.CONTEXT_FULL if index else Outcome.PROMPT_TOO_LONG)
        began = datetime.now(UTC)
        made = await self._models.make(self._wanted(index, prompt, min(self.limits.max_tokens, room)))
        ended = made.finish == "stop" and bool(made.ids) and made.ids[-1] in self.template.stop_ids
        text = self.template.tokenizer.decode(made.ids[:-1] if ended else made.ids)
        parsed = tool_call_parsers.parse(self.environment.parser, text, self.tools)
        self.texts.append(text)
        self._turn = index
        self.recorder.parsed(index, text, _parsed_calls(parsed), began)
        full = room <= self.limits.max_tokens
        if made.finish == "length" and (full or not may_be_cut):
            raise EndedError(Outcome.CONTEXT_FULL if full else Outcome.TOKEN_LIMIT)
        return Reply(made.ids, text, ended, parsed)

    async def call_tools(self, calls: Sequence[Call]) -> list[str]:
        """All at once; their results in the order of the calls."""
        assert self._turn is not None, "tools are called by a turn"
        with self._calling():
            return await self._tools.run(self._turn, calls)

    def stop(self) -> None:
        """Cancels the calls of tasks that the loop left behind: what they still get belongs to no record."""
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
        """The last turn is complete."""
        self._close_turn(last=True)

    def _wanted(self, turn: int, prompt: list[int], most_tokens: int) -> Wanted:
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

        return Wanted(
            turn=turn,
            prompt=prompt,
            rule=self.limits.rule,
            most_tokens=most_tokens,
            stop_ids=self.template.stop_ids,
            seed=seed,
            version=self.task.version,
        )

    def _close_turn(self, *, last: bool = False) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            self.recorder.turn_over(turn, last=last)


def _parsed_calls(parsed: Parsed) -> list[ParsedCall]:
    return [
        *(ParsedCall(name=call.name, arguments=call.arguments) for call in parsed.calls),
        *(ParsedCall(error=error) for error in parsed.errors),
    ]
