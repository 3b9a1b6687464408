"""Agent loops: how an agent works on a task. A task names its loop; a run can add its own.

    @register_loop("debate")
    class Debate(AgentLoop):
        async def run(self, episode: Episode) -> Outcome:
            reply = await episode.model(episode.first_prompt())
            ...
            return Outcome.ANSWERED

Invariants: a loop knows the episode and nothing about stores, engines or toolboxes; limits, deadlines and failures end
an episode by one of the `exits`, which pass through the loop and which it must not catch. A loop that is declared
resumable makes the same model calls and tool calls in the same order whenever it gets the same answers, so another
sampler can continue it: it runs the loop again with the stored answers.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from agentrl.environments.rubric import Score
from agentrl.errors import ConfigError, UnknownNameError
from agentrl.policies.outcomes import Outcome
from agentrl.rollout import answer_extraction, scorers
from agentrl.store.documents import Task

if TYPE_CHECKING:
    from agentrl.rollout.episode import Episode


class AgentLoop(abc.ABC):
    """Subclass it, write `run`, and register it under a name."""

    resumable: ClassVar[bool] = False
    """Whether another sampler may continue an episode in the middle; the docstring of the module says what this
    requires of `run`."""

    @abc.abstractmethod
    async def run(self, episode: Episode) -> Outcome:
        """Act until the end, and return the outcome: a result of the policy, or a limit."""

    @classmethod  # noqa: B027 - most loops start nothing
    async def prepare(cls) -> None:
        """Starts what the first episode would start. It may take long, and an episode has little time."""

    def answer(self, texts: Sequence[str], task: Task) -> str | None:
        """Extract the answer from what the model wrote in each turn."""
        return answer_extraction.extract(task.answer_schema, texts[-1]) if texts else None

    async def evaluate_record(self, texts: Sequence[str], task: Task) -> float | Score:
        """Returns the score, or `Score` with rewards of turns. After an UnscoredError it is called again, maybe in
        another process.

        A subclass may declare `evaluate_record(self, episode: EndedEpisode)` instead, to score by tool calls as well.
        """
        return await scorers.score(task.scorer, self.answer(texts, task), task)

    def ending(self, text: str, task: Task) -> Outcome:
        """The outcome of a turn that is the agent's last."""
        return Outcome.NO_ANSWER if self.answer([text], task) is None else Outcome.ANSWERED


_registry: dict[str, type[AgentLoop]] = {}
Registered = Callable[[type[AgentLoop]], type[AgentLoop]]


def register_loop(name: str) -> Registered:
    """Make a loop known under a name that tasks and environments use."""

    def register(loop: type[AgentLoop]) -> type[AgentLoop]:
        if not (isinstance(loop, type) and issubclass(loop, AgentLoop)):
            raise ConfigError(
                f"The agent loop {name!r} is no class derived from AgentLoop.", hint="See docs/agents.md."
            )
        if _registry.setdefault(name, loop) is not loop:
            raise ConfigError(f"There are two agent loops {name!r}.", hint="Names are unique; take another one.")
        return loop

    return register


def loop_named(name: str) -> type[AgentLoop]:
    try:
        return _registry[name]
    except KeyError:
        known = ", ".join(sorted(_registry))
        raise UnknownNameError(f"There is no agent loop {name!r}.", hint=f"Known are: {known}.") from None


def known() -> tuple[str, ...]:
    """Names of all loops."""
    return tuple(sorted(_registry))
