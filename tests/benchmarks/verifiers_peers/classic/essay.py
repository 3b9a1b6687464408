"""A paragraph that another model judges."""

import verifiers as vf
from datasets import load_dataset

question = "Is this paragraph about {question} true and clear?\n{response}\nEnd with VERDICT: and a number from 0 to 1."


def load_environment():
    data = load_dataset("json", data_files="essay.jsonl", split="train").rename_column("query", "question")
    rubric = vf.JudgeRubric(judge_prompt=question)

    async def good(judge, prompt, completion, answer, state):
        verdict = await judge(prompt, completion, answer, state)
        return float(verdict.rpartition("VERDICT:")[2])

    rubric.add_reward_func(good)
    return vf.SingleTurnEnv(dataset=data, system_prompt="Write one paragraph in <answer></answer>.", rubric=rubric)
