"""A paragraph that another model judges."""

import json
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["EssayTaskset"]


class GoodJudge(vf.Judge[float]):
    prompt = "Is this paragraph about {query} true and clear?\n{text}\nEnd with VERDICT: and a number from 0 to 1."

    def parse(self, response: vf.JudgeResponse[float]) -> float:
        return float(response.text.rpartition("VERDICT:")[2])


class EssayConfig(vf.TaskConfig):
    judge: vf.JudgeConfig = vf.JudgeConfig()


class EssayTask(vf.Task[vf.TaskData, vf.State, EssayConfig]):
    @vf.reward
    async def good(self, trace: vf.Trace) -> float:
        judge = GoodJudge(self.config.judge)
        return (await judge.evaluate(trace=trace, query=self.data.prompt_text, text=trace.last_reply)).parsed


class EssaysConfig(vf.TasksetConfig):
    task: EssayConfig = EssayConfig()


class EssayTaskset(vf.Taskset[EssayTask, EssaysConfig]):
    def load(self) -> list[EssayTask]:
        data = [json.loads(line) for line in Path("essay.jsonl").read_text().splitlines()]
        rules = "Write one paragraph in <answer></answer>."
        return [EssayTask(vf.TaskData(prompt=row["query"], system_prompt=rules), self.config.task) for row in data]
