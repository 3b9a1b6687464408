"""Puzzles of reasoning-gym: a question, an answer in `<answer>`, and the score that the package gives it.

Invariant: a puzzle follows from the seed and its index, so a score needs nothing but the row and the text.
"""

from __future__ import annotations

from typing import Any

import reasoning_gym
from reasoning_gym import utils


class Environment:
    def __init__(self, name: str, arguments: dict[str, Any], rows: int, held_out: int) -> None:
        self._train = int(arguments.get("size", rows))
        self._held_out = held_out
        size = self._train + held_out
        self._puzzles = reasoning_gym.create_dataset(name, **{"seed": 0, **arguments, "size": size})

    def describe(self) -> dict[str, Any]:
        return {"system": utils.SYSTEM_PROMPTS["default"].strip(), "max_turns": 1, "answer_schema": "answer"}

    def rows(self) -> list[dict[str, Any]]:
        made = [self._row(index) for index in range(self._train + self._held_out)]
        known = {row["query"] for row in made[: self._train]}
        return [*made[: self._train], *(row for row in made[self._train :] if row["query"] not in known)]

    def _row(self, index: int) -> dict[str, Any]:
        puzzle = self._puzzles[index]
        split = "train" if index < self._train else "eval"
        return {
            "id": str(index),
            "query": puzzle["question"],
            "answer": puzzle["answer"],
            "split": split,
            "index": index,
        }

    def begin(self, row: dict[str, Any]) -> Puzzle:
        return Puzzle(self._puzzles, self._puzzles[int(row["index"])])


class Puzzle:
    def __init__(self, puzzles: Any, puzzle: dict[str, Any]) -> None:
        self._puzzles, self._puzzle = puzzles, puzzle
        self._answer: str | None = None
        self.done = False

    def answer(self, text: str) -> dict[str, Any]:
        self._answer = utils.extract_answer(text)
        self.done = True
        return {"done": True}

    def result(self) -> dict[str, Any]:
        return {"value": float(self._puzzles.score_answer(self._answer, self._puzzle)), "parts": {}}
