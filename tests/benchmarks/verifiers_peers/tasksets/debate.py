"""A debate: two agents argue, and a third decides."""

import json
import re
from pathlib import Path

import verifiers.v1 as vf

__all__ = ["DebateEnv", "DebateTaskset"]


class DebateData(vf.TaskData):
    answer: str


class DebateTask(vf.Task[DebateData]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float(re.findall("<answer>(.*?)</answer>", trace.last_reply)[-1:] == [self.data.answer])


class DebateTaskset(vf.Taskset[DebateTask, vf.TasksetConfig]):
    def load(self) -> list[DebateTask]:
        data = [json.loads(line) for line in Path("debate.jsonl").read_text().splitlines()]
        rules = "Decide. Answer true or false in <answer></answer>."
        return [
            DebateTask(DebateData(prompt=row["query"], answer=row["answer"], system_prompt=rules), self.config.task)
            for row in data
        ]


class DebateConfig(vf.EnvConfig):
    pro: vf.AgentConfig = vf.AgentConfig()
    con: vf.AgentConfig = vf.AgentConfig()
    agent: vf.AgentConfig = vf.AgentConfig()


class DebateEnv(vf.Env[DebateConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        claim = task.data.prompt_text
        true = vf.Task(vf.TaskData(system_prompt="Argue in one sentence that it is true."))
        false = vf.Task(vf.TaskData(system_prompt="Argue in one sentence that it is false."))
        async with agents.pro.interaction(true) as pro, agents.con.interaction(false) as con:
            first, second = await pro.turn(claim), await con.turn(claim)
            first, second = await pro.turn(second.last_reply), await con.turn(first.last_reply)
        asked = f"{claim}\nFor: {first.last_reply}\nAgainst: {second.last_reply}\nTrue or false?"
        await agents.agent.run(task.with_data(prompt=asked))
