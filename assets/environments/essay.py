"""A paragraph that another model judges. A run file names it: `models: {judge: [{url: ..., model: ...}]}`."""

import agentrl as rl

question = "Is this paragraph about {query} true and clear?\n{transcript}\nEnd with VERDICT: and a number from 0 to 1."
good = rl.judge("judge", name="good", template=question)
rules = "Write one paragraph in <answer></answer>."
essay = rl.Environment("essay", dataset="essay.jsonl", scorers=[good], system=rules)
