"""Defines what an episode does when its context is full, and when it repeats itself."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from agentrl.config.field_types import Natural, Positive, Section

ContextStrategy = Literal["stop", "discard_tool_results", "sliding_window", "discard_all_with_summary", "summarise"]


class Context(Section):
    """What is left out of a conversation that is too long. Every edit is a branch of the record, which trains."""

    strategy: ContextStrategy = "stop"
    """`stop`: the episode ends. `discard_tool_results`: results of earlier turns are removed. `sliding_window`: the
    oldest turns are removed. `discard_all_with_summary`: the model writes a summary in an extra turn, and continues
    from the query and the summary. `summarise`: another model writes the summary."""
    budget: Natural = 0
    """The most tokens of a prompt; an edit makes longer prompts shorter. 0: as many as leave room for an answer of
    `sampling.max_tokens` in `sampling.context`."""
    keep: Positive = 1
    """How many of the last turns stay whole, with `discard_tool_results` and `sliding_window`."""
    model: str = ""
    """With `summarise`: a name in `models`."""

    @model_validator(mode="after")
    def _has_a_model_to_ask(self) -> Context:
        if (self.strategy == "summarise") != bool(self.model):
            raise ValueError("model is needed by the strategy summarise, and by no other")
        return self


class Repetition(Section):
    """When an episode counts as repeating itself, and what happens then."""

    texts: Natural = 3
    """This many consecutive turns with the same text count as a repetition. 0: any number is allowed."""
    calls: Natural = 0
    """This many consecutive turns with the same calls and arguments count as a repetition. 0: any number is allowed."""
    means: Literal["end", "warn"] = "end"
    """`end`: the episode ends with the outcome `repetition`. `warn`: each time, the model gets a sentence about it."""
