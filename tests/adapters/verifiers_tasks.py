"""Environments of the package verifiers, imported by its Python: `verifiers:verifiers_tasks`."""

from __future__ import annotations

from typing import Any

import verifiers
from datasets import Dataset
from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv


def load_environment(kind: str, **arguments: Any) -> Any:
    return {"puzzles": puzzles, "tools": tools, "together": together}[kind](**arguments)


def puzzles(gym: str) -> Any:
    """Tasks, rubric and parser are those of the package."""
    return ReasoningGymEnv(gym=gym, num_train_examples=4, num_eval_examples=2, seed=5)


def right(completion: Any, answer: str) -> float:
    return float(answer in str(completion[-1].content))


def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


class Tools(verifiers.ToolEnv):  # type: ignore[misc]
    """A task whose question contains `sandbox` or `forget` has a fault."""

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        if "sandbox" in str(state["prompt"][-1].content):
            raise verifiers.InfraError("its sandbox is away")
        return await super().env_response(messages, state)

    async def get_prompt_messages(self, state: Any) -> Any:
        found = await super().get_prompt_messages(state)
        return found[:1] + found[2:] if "forget" in str(state["prompt"][-1].content) and len(found) > 2 else found


def tools() -> Any:
    asked = ("What is 3 + 4?", "Sum up and forget.", "Use a sandbox.")
    tasks = Dataset.from_list([{"question": one, "answer": "7"} for one in asked])
    rubric = verifiers.Rubric(funcs=[right], weights=[0.5])
    return Tools(tools=[add], dataset=tasks, rubric=rubric, system_prompt="Add.", max_turns=4)


def together() -> Any:
    def longest(completions: Any) -> list[float]:
        return [0.0 for _ in completions]

    tasks = Dataset.from_list([{"question": "What is 3 + 4?", "answer": "7"}])
    return verifiers.SingleTurnEnv(dataset=tasks, rubric=verifiers.Rubric(funcs=[longest]))
