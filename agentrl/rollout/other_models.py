"""Other models for the episodes and scores of this process, as the run file configures them now.

Invariants: each question uses the present configuration, so a change takes effect at once; a question for a score ends
after `SCORE_PATIENCE_S`, and the record waits for its score; time that an episode waits for another model does not
count for its deadline.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace

from agentrl.config.other_models import Summaries
from agentrl.config.run import RunConfig
from agentrl.environments import other_models
from agentrl.environments.other_models import Asked, OtherModelError
from agentrl.errors import AgentrlError
from agentrl.other_models.client import ModelAwayError, OtherModels
from agentrl.other_models.dialects import Question
from agentrl.other_models.ledger import Ledger
from agentrl.policies.outcomes import Outcome
from agentrl.rollout import judges
from agentrl.rollout.episode_clock import EpisodeClock
from agentrl.rollout.episode_errors import EndedError
from agentrl.rollout.model_calls import Wait
from agentrl.telemetry import data_plane_metrics as metrics

SCORE_PATIENCE_S = 120.0
"""Shorter than a scorer may take. Then the record is scored later."""
AWAY_AT_MOST_S = 3600.0
"""The longest time that an episode waits for another model. After that its seat is attempted again, and the failed
attempt does not count."""
_record: ContextVar[str] = ContextVar("record_of_other_models", default="")


def about(record: str) -> None:
    """Questions that the present asyncio task asks from now on are for this record."""
    _record.set(record)


class Helpers:
    """Implements `Asker`, for scorers."""

    def __init__(self, config: RunConfig, ledger: Ledger) -> None:
        self.models = OtherModels(config.models, ledger)
        self.summaries: Summaries = config.summaries
        judges.configure(config.judges)

    def configure(self, config: RunConfig) -> None:
        """Take the changed configuration. Raises ConfigError if a judge has the name of another scorer."""
        judges.configure(config.judges)
        self.models.configure(config.models)
        self.summaries = config.summaries

    def provide(self) -> None:
        """Provides the other models to the scorers that the present asyncio task calls, and to those of tasks that it
        creates."""
        other_models.provide(self)

    async def ask(self, name: str, asked: Asked, *, purpose: str) -> str:
        question = Question(asked.messages, asked.temperature, asked.max_tokens, asked.salt)
        try:
            answer = await self.models.ask(
                name, question, purpose=purpose, record=_record.get(), patience_s=SCORE_PATIENCE_S
            )
        except AgentrlError as failed:
            error = OtherModelError(failed.message)
            error.away = name if isinstance(failed, ModelAwayError) else ""
            raise error from failed
        return answer.text

    def in_episode(self, record: str, clock: EpisodeClock, wait: Wait) -> EpisodeModels:
        return EpisodeModels(self, record, clock, wait)

    def metrics(self) -> Mapping[str, float]:
        """Of this process, since it began."""
        counts = self.models.counts
        return {
            metrics.OTHER_MODEL_CALLS.name: counts["calls"],
            metrics.OTHER_MODEL_FAILURES.name: counts["failures"],
            metrics.OTHER_MODEL_UNANSWERED.name: counts["unanswered"],
            metrics.OTHER_MODEL_KEPT.name: counts["kept"],
            metrics.OTHER_MODEL_WAITING.name: self.models.waiting,
            metrics.OTHER_MODEL_COST.name: self.models.cost,
        }


class EpisodeModels:
    """Implements `Asker`, for the loop of one episode and the results of its tools."""

    def __init__(self, helpers: Helpers, record: str, clock: EpisodeClock, wait: Wait) -> None:
        self._helpers = helpers
        self._record = record
        self._clock = clock
        self._wait = wait
        self._number = 0

    @property
    def summaries(self) -> Summaries:
        """As they are configured now."""
        return self._helpers.summaries

    async def ask(self, name: str, asked: Asked, *, purpose: str) -> str:
        """Numbers the questions, so an episode that continues in another sampler finds its answers again."""
        self._number += 1
        numbered = replace(asked, salt=f"{self._record} {self._number} {asked.salt}")
        return await self.shared(name, numbered, purpose=purpose)

    async def shared(self, name: str, asked: Asked, *, purpose: str) -> str:
        """Asks a question whose answer episodes share: the same question of another episode gets the same answer."""
        question = Question(asked.messages, asked.temperature, asked.max_tokens, asked.salt)
        models = self._helpers.models
        try:
            with self._wait(f"an answer of the model {name}", f"model {name}", AWAY_AT_MOST_S), self._clock.parked():
                answer = await models.ask(
                    name, question, purpose=purpose, record=self._record, patience_s=AWAY_AT_MOST_S
                )
        except ModelAwayError as away:
            raise EndedError(Outcome.OTHER_MODEL_FAILED, away.message, free=True) from away
        except AgentrlError as failed:
            raise OtherModelError(failed.message) from failed
        return answer.text
