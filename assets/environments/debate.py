"""A debate: two agents argue in parallel, and a third decides."""

import asyncio

import agentrl as rl


@rl.agent
async def debate(episode: rl.Conversation) -> None:
    pro = episode.branch("pro", system="Argue in one sentence that it is true.")
    con = episode.branch("con", system="Argue in one sentence that it is false.")
    first, second = await asyncio.gather(pro.chat(episode.query), con.chat(episode.query))
    first, second = await asyncio.gather(pro.chat(second.text), con.chat(first.text))
    await episode.chat(f"{episode.query}\nFor: {first.text}\nAgainst: {second.text}\nTrue or false?")


@rl.scorer
def right(episode: rl.Episode) -> float:
    return float(episode.answer == episode.truth)


rules = "Decide. Answer true or false in <answer></answer>."
claims = rl.Environment("debate", dataset="debate.jsonl", agent=debate, scorers=[right], system=rules)
