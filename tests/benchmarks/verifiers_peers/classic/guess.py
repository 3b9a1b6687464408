"""A game with a state: find a number by what the tool says of a guess."""

import verifiers as vf
from datasets import load_dataset


class Game(vf.StatefulToolEnv):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.add_tool(self.guess, args_to_skip=["state"])

    async def setup_state(self, state):
        state["found"], state["left"] = False, 6

    def update_tool_args(self, tool_name, tool_args, messages, state, **kwargs):
        return {**tool_args, "state": state}

    async def guess(self, number: int, state: dict) -> str:
        """Guess the number."""
        if state["left"] == 0:
            raise ValueError("no guesses are left")
        state["left"] -= 1
        state["found"] |= number == int(state["answer"])
        return "right" if number == int(state["answer"]) else "higher" if number < int(state["answer"]) else "lower"


def found(state):
    return float(state["found"])


def quickly(state):
    return state["left"] / 6


def load_environment():
    data = load_dataset("json", data_files="guess.jsonl", split="train").rename_column("query", "question")
    rules = "Find the number by the tool guess, in at most 6 guesses. Then answer in <answer></answer>."
    return Game(dataset=data, system_prompt=rules, rubric=vf.Rubric([found, quickly], weights=[1.0, 0.1]))
