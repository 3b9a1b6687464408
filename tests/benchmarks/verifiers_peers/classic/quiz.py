"""A quiz: the answer is right or wrong."""

import verifiers as vf
from datasets import load_dataset


def load_environment():
    data = load_dataset("json", data_files="quiz.jsonl", split="train").rename_column("query", "question")
    parser = vf.XMLParser(["answer"])

    def right(completion, answer):
        return float(parser.parse_answer(completion) == answer)

    return vf.SingleTurnEnv(dataset=data, system_prompt="Answer in <answer></answer>.", rubric=vf.Rubric([right]))
