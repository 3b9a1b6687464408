"""A quiz: the answer is right or wrong."""

import json
import re
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["QuizTaskset"]


class QuizData(vf.TaskData):
    answer: str


class QuizTask(vf.Task[QuizData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(re.findall("<answer>(.*?)</answer>", trace.last_reply)[-1:] == [self.data.answer])


class QuizTaskset(vf.Taskset[QuizTask, vf.TasksetConfig]):
    def load(self) -> list[QuizTask]:
        data = [json.loads(line) for line in Path("quiz.jsonl").read_text().splitlines()]
        rules = "Answer in <answer></answer>."
        return [
            QuizTask(QuizData(prompt=row["query"], answer=row["answer"], system_prompt=rules), self.config.task)
            for row in data
        ]
