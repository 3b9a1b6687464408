"""The judges of the run file as scorers.

Invariants: a judge scores by its section of the run file as it is at that moment; a judge that does not answer, or
gives no verdict, leaves the record unscored.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.config.other_models import Judge
from agentrl.environments import judge
from agentrl.environments.judge import NoVerdictError
from agentrl.environments.other_models import OtherModel, OtherModelError
from agentrl.environments.rubric import Score
from agentrl.rollout import scorers
from agentrl.rollout.ended_episode import stored_episode
from agentrl.rollout.scorers import UnscoredError
from agentrl.store.documents import Task

_judges: dict[str, Judge] = {}
_registered: dict[str, scorers.Scorer] = {}


def configure(judges: Mapping[str, Judge]) -> None:
    """Raises ConfigError if a judge has the name of a scorer of another kind."""
    for name in judges:
        made = _registered.setdefault(name, _scorer(name))
        scorers.register_scorer(name)(made)
    _judges.clear()
    _judges.update(judges)


def _scorer(name: str) -> scorers.Scorer:
    async def ask(answer: str, truth: str, task: Task) -> Score:
        if (settings := _judges.get(name)) is None:
            raise UnscoredError(f"There is no judge {name} in the run file any more.")
        texts = {"query": task.query, "truth": truth, "answer": answer, "transcript": None}
        if "{transcript}" in settings.template:
            episode = await stored_episode()
            results = [
                (turn, call.result) for turn, call in zip(episode.turns_of_calls, episode.tool_calls, strict=True)
            ]
            texts["transcript"] = judge.transcript(task.query, episode.texts, results)
        model = OtherModel(settings.model, purpose=f"judge {name}")
        asked = judge.question(settings.template, texts)
        try:
            return await judge.judged(model, asked, votes=settings.votes, agreement=settings.agreement)
        except (OtherModelError, NoVerdictError) as cannot:
            raise UnscoredError(f"The judge {name} cannot say: {cannot}") from cannot

    return ask
