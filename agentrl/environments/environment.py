"""`Environment`: what a file declares.

Invariants:
- Declaring an environment only registers it: nothing is started or read.
- Its declarations are keys of `environments` in a run file, which can override each of them.
- Names are unique within a file.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar, overload

from agentrl.environments.conversation import Conversation
from agentrl.environments.rubric import Scorer, as_scorer
from agentrl.toolservers.user_names import is_tool

AgentFunction = Callable[[Conversation], Awaitable[object]]
LifeFunction = Callable[[Conversation], object]
_A = TypeVar("_A", bound=AgentFunction)
_RESUMABLE = "agentrl_resumable"
_declared: dict[str, Environment] = {}


class Environment:
    """A family of tasks with its tools, agent loop and scorers."""

    def __init__(
        self,
        name: str,
        *,
        dataset: str,
        evaluation: str = "",
        tools: Sequence[Callable[..., Any]] = (),
        scorers: Sequence[Callable[..., Any]] = (),
        agent: AgentFunction | None = None,
        setup: LifeFunction | None = None,
        teardown: LifeFunction | None = None,
        system: str = "",
        **more: object,
    ) -> None:
        """`dataset` and `evaluation` are relative to this file. `agent` is a function marked with `@agent`; without
        one, the model calls tools until it answers. `setup` gets the conversation before the agent, `teardown` after
        it, however it ends; both may be async. `more` are further keys of `environments` in a run file, such as
        `max_turns=4` or `answer_schema="boxed"`.
        """
        if not (isinstance(name, str) and name.isidentifier()):
            raise ValueError(f"the name of an environment must be a word of letters, digits and _, and not {name!r}")
        if name in _declared:
            raise ValueError(f"there are two environments {name!r} in this file")
        for given in tools:
            if not is_tool(given):
                called = getattr(given, "__name__", repr(given))
                raise TypeError(f"{called} is no tool: write @rl.tool above its definition")
        if agent is not None and not inspect.iscoroutinefunction(agent):
            raise TypeError(f"the agent {getattr(agent, '__name__', agent)!r} must be an async function")
        self.name = name
        self.line = sys._getframe(1).f_lineno
        self.tools = tuple(given.__name__ for given in tools)
        self.functions = tuple(tools)
        self.scorers: tuple[Scorer, ...] = tuple(as_scorer(given) for given in scorers)
        named = [each.name for each in self.scorers]
        if twice := sorted({each for each in named if named.count(each) > 1}):
            raise ValueError(f"there are two scorers {twice[0]!r}; give one of them another name=")
        self.agent = agent
        self.setup, self.teardown = setup, teardown
        own: dict[str, object] = {"dataset": dataset, "evaluation": evaluation, "system": system}
        # An empty text among `more` is a value, such as answer_schema="" for the whole text.
        self._keys = {key: value for key, value in own.items() if value} | more
        _declared[name] = self

    @property
    def keys(self) -> dict[str, object]:
        """The keys that it sets in `environments.NAME`."""
        return {key: value for key, value in self._keys.items() if value is not None}

    @property
    def resumable(self) -> bool:
        """Whether another sampler may continue an unfinished episode."""
        return self.agent is None or bool(getattr(self.agent, _RESUMABLE, False))


@overload
def agent(function: _A) -> _A: ...
@overload
def agent(*, resumable: bool = False) -> Callable[[_A], _A]: ...
def agent(function: _A | None = None, *, resumable: bool = False) -> _A | Callable[[_A], _A]:
    """Mark an async function of a conversation as an agent loop. `resumable`: given the same answers, it makes the same
    requests, so another sampler can continue an unfinished episode."""

    def mark(marked: _A) -> _A:
        setattr(marked, _RESUMABLE, resumable)
        return marked

    return mark if function is None else mark(function)


def declared() -> tuple[Environment, ...]:
    """All environments that this process has imported, in the order of their declaration."""
    return tuple(_declared.values())
