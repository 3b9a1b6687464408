"""A quiz: the answer is right or wrong."""

import agentrl as rl


@rl.scorer
def right(episode: rl.Episode) -> float:
    return float(episode.answer == episode.truth)


quiz = rl.Environment("quiz", dataset="quiz.jsonl", scorers=[right], system="Answer in <answer></answer>.")
