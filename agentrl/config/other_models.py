"""Defines the sections of models besides the one that is trained: services, judges, summaries of tool results.

Invariants:
- A change of these sections needs no restart: samplers read them again while they work.
- A key is a reference to a secret.
- Every model that a section names exists.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agentrl.config.field_types import Flag, Natural, Number, Positive, Seconds, Secret, Section, Share, Words, read_by

_ADDRESS = re.compile(r"https?://[^\s/@]+(/\S*)?")
_SHOWN = read_by("sampler", live=True, shown_to=["steward"])
"""The steward reports these settings of other models, and calls none."""
_PLACES = re.compile(r"\{(\w+)\}")
PLACES = ("query", "truth", "answer", "transcript")
"""The names that a judge's template may have in braces."""
Price = Annotated[Number, Field(ge=0, le=1_000_000)]


class OtherModel(Section):
    """A service that answers for another model, over the API of OpenAI or of Anthropic."""

    kind: Annotated[Literal["openai", "anthropic"], _SHOWN] = "openai"
    """The API: chat completions of OpenAI, which most servers have, or messages of Anthropic."""
    url: Annotated[str, _SHOWN]
    """The address of the API, such as `https://HOST/v1`; loopback is fine."""
    model: Annotated[str, _SHOWN]
    """The name of the model at the service."""
    key: Annotated[Secret, _SHOWN] = None
    """A reference to its key: `env:NAME` or `file:PATH`. A file is read again when it changes."""
    price_in: Annotated[Price, _SHOWN] = 0.0
    """The price of a million tokens of prompts, in a currency of your own."""
    price_out: Annotated[Price, _SHOWN] = 0.0
    """The price of a million tokens that the model writes."""
    per_minute: Annotated[Natural, _SHOWN] = 0
    """Calls per minute of all samplers together; further calls wait. 0: no limit."""
    at_once: Annotated[Positive, _SHOWN] = 16
    """Concurrent calls of each sampler; further calls wait."""
    timeout_s: Annotated[Seconds, _SHOWN] = 60.0
    """How long one call may take before the next service is asked."""
    max_tokens: Positive = 1_024
    """The most tokens of an answer."""
    temperature: Annotated[Number, Field(ge=0, le=2)] = 0.0
    """Sampling temperature. A judge with several votes needs one above 0."""
    more: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each request, by the names that the service uses."""

    @model_validator(mode="after")
    def _has_an_address(self) -> OtherModel:
        if not _ADDRESS.fullmatch(self.url):
            raise ValueError(f"{self.url!r} is not an address such as https://HOST/v1, without a user or a key")
        return self

    @property
    def name(self) -> str:
        """Its name in records and on screens; never contains a key."""
        return f"{self.model} at {self.url.split('://', 1)[1].split('/', 1)[0]}"

    @property
    def identity(self) -> str:
        """Identifies an account at a service. Limits and failures are counted for each account."""
        return f"{self.kind} {self.url} {self.model} {self.key or ''}"


class Judge(Section):
    """A scorer that asks another model."""

    model: Annotated[str, _SHOWN]
    """The name of a model in `models`."""
    template: str = ""
    """The question, with `{query}`, `{truth}`, `{answer}` and `{transcript}`. It must ask for a last line such as
    `VERDICT: 0.5`: a number from 0 to 1, `CORRECT` or `WRONG`. Empty: whether the answer agrees with the truth."""
    votes: Annotated[int, Field(strict=True, ge=1, le=25)] = 1
    """How often it is asked. The score is the mean of the verdicts."""
    agreement: Share = 0.0
    """The least share of equal verdicts. If fewer agree, the judge is asked up to `votes` more times; if that does not
    help, the record stays unscored."""

    @model_validator(mode="after")
    def _names_what_there_is(self) -> Judge:
        if problem := problem_of_template(self.template):
            raise ValueError(problem)
        return self


def problem_of_template(template: str) -> str:
    """Why a judge cannot be asked with this template; empty if it can."""
    unknown = sorted({name for name in _PLACES.findall(template)} - set(PLACES))
    if unknown:
        return f"template has {{{unknown[0]}}}, and may have {', '.join(f'{{{name}}}' for name in PLACES)}"
    if template and not {"answer", "transcript"} & set(_PLACES.findall(template)):
        return "template names neither {answer} nor {transcript}, so every episode would get the same verdict"
    if template and "VERDICT" not in template:
        return "template must ask for a last line such as VERDICT: 0.5"
    return ""


class Summaries(Section):
    """Long results of tools are summarised by another model before the policy reads them."""

    on: Annotated[Flag, _SHOWN] = True
    """Whether results are summarised now."""
    model: Annotated[str, _SHOWN] = ""
    """The name of a model in `models`; empty: nothing is summarised."""
    tools: Words = ()
    """The tools whose results are summarised; empty: all."""
    longer_than: Positive = 4_000
    """Characters. Shorter results stay as they are."""
    most_read: Positive = 60_000
    """The most characters of a result that the model gets; of a longer result it gets both ends."""
    purpose: str = "Find what helps to answer the question."
    """The purpose of the summary. A call with an argument `purpose` sets its own."""
