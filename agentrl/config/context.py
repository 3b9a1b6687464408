"""Defines what an episode does when its context is full, and when it repeats itself."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from agentrl.config.field_types import Natural, Positive, Section

ContextStrategy = Literal["stop", "discard_tool_results", "sliding_window", "discard_all_with_summary", "summarise"]


class Context(Section):
    """What is left out of a conversation that is too long. Every edit is a branch of the record, which trains."""

    strategy: ContextStrategy = "stop"
    """`stop`: the episode ends. `discard_tool_results`: results of earlier turns go. `sliding_window`: the oldest turns
    go. `discard_all_with_summary`: the model writes down what it knows in a turn of its own, and goes on from the query
    and that. `summarise`: another model writes it."""
    budget: Natural = 0
    """Tokens of a prompt above which this is done. 0: so that an answer of `sampling.max_tokens` still fits into
    `sampling.context`."""
    keep: Positive = 1
    """Turns at the end that stay whole, with `discard_tool_results` and `sliding_window`."""
    model: str = ""
    """With `summarise`: a name in `models`."""

    @model_validator(mode="after")
    def _has_a_model_to_ask(self) -> Context:
        if (self.strategy == "summarise") != bool(self.model):
            raise ValueError("model is needed by the strategy summarise, and by no other")
        return self


class Repetition(Section):
    """When an episode repeats itself."""

    texts: Natural = 3
    """So many turns in a row that say the same. 0: any number."""
    calls: Natural = 0
    """So many turns in a row that make the same calls with the same arguments. 0: any number."""
    means: Literal["end", "warn"] = "end"
    """`end`: the episode ends with the outcome `repetition`. `warn`: the model reads a sentence about it, each time."""
