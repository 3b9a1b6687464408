"""Defines how tokens are sampled: for training, and for evaluation.

Invariant: for training, only the temperature shapes the sampling, because the trainer must recompute the log-probs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from agentrl.config.field_types import Natural, Number, Positive, Section, Tunable, read_by
from agentrl.policies import sampling_rule
from agentrl.protocol.specs import Role

_SCIENTIFIC = Tunable(owner=Role.STEWARD, scientific=True)


class Sampling(Section):
    """How episodes are sampled for training. Frozen in each task at its admission."""

    n: Annotated[int, Field(strict=True, ge=2, le=1_024), _SCIENTIFIC, read_by("steward", "trainer")] = 8
    """Episodes of one task. Their mean score is the baseline."""
    temperature: Annotated[Number, Field(ge=0.01, le=10), _SCIENTIFIC, read_by("steward", "sampler")] = 1.0
    """Sampling temperature for training. Evaluation has its own, `evaluation.temperature`."""
    max_tokens: Annotated[Positive, _SCIENTIFIC, read_by("steward", "sampler")] = 1_024
    """Tokens of one model call."""
    context: Annotated[Positive, read_by("steward", "sampler", "trainer", "engine")] = 8_192
    """Tokens of a whole trajectory."""

    @model_validator(mode="before")
    @classmethod
    def _trains_on_what_is_sampled(cls, value: Any) -> Any:
        """The trainer recomputes log softmax(logits / temperature); other distributions are for evaluation."""
        found = sorted(set(value) & set(sampling_rule.NEUTRAL)) if isinstance(value, Mapping) else []
        if found:
            raise ValueError(
                f"must not have {', '.join(found)}: the trainer recomputes log-probs at a temperature only; "
                "limits and penalties are settings of `evaluation`"
            )
        return value


class Evaluation(Section):
    """Evaluation on held-out tasks, each with one pinned version."""

    every: Annotated[Natural, Tunable("next version", Role.TRAINER, name="evaluate_every"), read_by("trainer")] = 20
    """Publications between two evaluations; 0 evaluates only at the end."""
    temperature: Annotated[Number, Field(ge=0, le=10)] = 0.0
    """0 is greedy."""
    top_p: Annotated[Number, Field(gt=0, le=1)] = 1.0
    """Only the likeliest tokens that together reach this probability are sampled. This limit, the others and the
    penalties are for evaluation only: the trainer cannot recompute log-probs of a truncated distribution."""
    top_k: Annotated[int, Field(strict=True, ge=-1, le=1_000_000)] = -1
    """Only this many of the likeliest tokens are sampled; 0 and -1: all."""
    min_p: Annotated[Number, Field(ge=0, le=1)] = 0.0
    """Only tokens with at least this share of the highest probability are sampled."""
    frequency_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    """Subtracted from the logit of a token for each time that it occurs in the output of the call."""
    presence_penalty: Annotated[Number, Field(ge=-2, le=2)] = 0.0
    """Subtracted from the logit of a token that occurs in the output of the call."""
    repetition_penalty: Annotated[Number, Field(ge=0.01, le=2)] = 1.0
    """For a token that occurs in the output of the call: divides its logit if positive, multiplies it if negative."""
    engine: Annotated[Literal["shared", "own", "embedded"], read_by("engine")] = "shared"
    """What serves the pinned version. `shared`: the engines of the run. An embedded engine holds it beside the newest
    version; the first SGLang server serves it instead of the newest version until the evaluation ends. `own`: one more
    engine unit of the same kind, only for evaluations. `embedded`: one more embedded engine, on processors."""
    samples: Positive = 1
    """Episodes of one task."""
    tasks: Natural = 64
    """How many held-out tasks at most; 0 takes all."""

    @model_validator(mode="after")
    def _can_be_sampled(self) -> Self:
        if problem := sampling_rule.SamplingRule.of(dict(self)).problem():
            raise ValueError(problem)
        return self
