"""A debate: two agents argue, and a third decides."""

import verifiers as vf
from datasets import load_dataset

SIDES = ["Argue in one sentence that it is true.", "Argue in one sentence that it is false."]


class Debate(vf.MultiTurnEnv):
    async def get_prompt_messages(self, state):
        turns, claim = state["trajectory"], state["prompt"][-1]["content"]
        texts, turn = [each["completion"][-1]["content"] for each in turns], len(turns)
        if turn < 2:
            return [{"role": "system", "content": SIDES[turn]}, {"role": "user", "content": claim}]
        if turn < 4:
            before, other = turns[turn - 2], texts[3 - turn]
            return [*before["prompt"], *before["completion"], {"role": "user", "content": other}]
        asked = f"{claim}\nFor: {texts[2]}\nAgainst: {texts[3]}\nTrue or false?"
        return [*state["prompt"][:-1], {"role": "user", "content": asked}]

    async def env_response(self, messages, state):
        return []


def load_environment():
    data = load_dataset("json", data_files="debate.jsonl", split="train").rename_column("query", "question")
    parser = vf.XMLParser(["answer"])

    def right(completion, answer):
        return float(parser.parse_answer(completion) == answer)

    rules = "Decide. Answer true or false in <answer></answer>."
    return Debate(dataset=data, system_prompt=rules, rubric=vf.Rubric([right]), max_turns=5)
