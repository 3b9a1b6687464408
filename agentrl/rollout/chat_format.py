"""The text format of the trained model: its tokenizer, its chat template, the size of its vocabulary.

Invariant: they are those of the publications that engines serve; all publications of a run have the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from agentrl.chat import prefix_check
from agentrl.chat.template import Template
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.images.processing import Processing, processing_of


class ChatFormat(NamedTuple):
    template: Template
    vocabulary: int
    """The number of ids that the model can sample; larger than the tokenizer's if the matrices of the model are
    padded."""
    rewrites: str
    """Where the model's own chat template rewrites earlier turns, as a sentence; empty if it does not."""
    images: Processing | None = None
    """How the model is shown images; None if it reads texts only."""


def of_run(directory: Path, config: RunConfig) -> ChatFormat:
    """The format of the model in the run file."""
    wanted = config.model
    return read(directory) if wanted is None else read(directory, wanted.template, most_pixels=wanted.images.max_pixels)


def read(directory: Path, variables: Mapping[str, Any] | None = None, *, most_pixels: int = 0) -> ChatFormat:
    """`variables` are those of the chat template; `most_pixels` limits the pixels of an image below the model's own
    limit."""
    try:
        described = json.loads((directory / "config.json").read_bytes())
        declared = int({**(described.get("text_config") or {}), **described}.get("vocab_size") or 0)
    except (OSError, ValueError, AttributeError, TypeError) as broken:
        raise ConfigError(f"The model in {directory} has no config.json that can be read: {broken}.") from broken
    template = Template.of(directory, variables)
    images = processing_of(directory, described)
    return ChatFormat(
        template,
        max(declared, template.tokenizer.size),
        prefix_check.sentence(template.rewrites()),
        None if images is None else images.limited(most_pixels),
    )


def other_calls(chat: ChatFormat, config: RunConfig) -> list[str]:
    """A sentence for each environment whose parser does not read the calls that the model's template writes."""
    kinds = chat.template.parsers()
    return [
        f"environments.{name}.parser is {environment.parser}, and the model's chat template writes tool calls that "
        f"{' or '.join(kinds)} reads."
        for name, environment in config.environments.items()
        if kinds and environment.tools and environment.parser not in kinds
    ]
