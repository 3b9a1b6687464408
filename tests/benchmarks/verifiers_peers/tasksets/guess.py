"""A game with a state: find a number by what the tool says of a guess."""

import json
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["GuessTaskset"]


class GameData(vf.TaskData):
    number: int


class GameState(vf.State):
    number: int = 0
    left: int = 6
    found: bool = False


class GameTools(vf.Toolset[vf.ToolsetConfig, GameState]):
    @vf.tool
    async def guess(self, number: int) -> str:
        """Guess the number."""
        if self.state.left == 0:
            raise ValueError("no guesses are left")
        self.state.left -= 1
        self.state.found |= number == self.state.number
        return "right" if number == self.state.number else "higher" if number < self.state.number else "lower"


class GuessTask(vf.Task[GameData, GameState]):
    async def setup(self, trace: vf.Trace) -> None:
        trace.state.number = self.data.number

    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [GameTools(vf.ToolsetConfig())]

    @vf.reward
    async def found(self, trace: vf.Trace) -> float:
        return float(trace.state.found)

    @vf.reward(weight=0.1)
    async def quickly(self, trace: vf.Trace) -> float:
        return trace.state.left / 6


class GuessTaskset(vf.Taskset[GuessTask, vf.TasksetConfig]):
    def load(self) -> list[GuessTask]:
        data = [json.loads(line) for line in Path("guess.jsonl").read_text().splitlines()]
        rules = "Find the number by the tool guess, in at most 6 guesses. Then answer in <answer></answer>."
        return [
            GuessTask(GameData(prompt=row["query"], number=row["number"], system_prompt=rules), self.config.task)
            for row in data
        ]


if __name__ == "__main__":
    GameTools.run()
