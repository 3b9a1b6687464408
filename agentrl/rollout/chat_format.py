"""The words of the model that is trained: its tokenizer, its chat template, the size of its vocabulary.

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


class ChatFormat(NamedTuple):
    template: Template
    vocabulary: int
    """Ids that the model can sample; more than the tokenizer's if its matrices are padded."""
    rewrites: str
    """Where the model's own chat template rewrites earlier turns, as a sentence; empty if it does not."""


def read(directory: Path, variables: Mapping[str, Any] | None = None) -> ChatFormat:
    """`variables` are those of the chat template."""
    try:
        described = json.loads((directory / "config.json").read_bytes())
        declared = int(described.get("vocab_size") or 0)
    except (OSError, ValueError, AttributeError, TypeError) as broken:
        raise ConfigError(f"The model in {directory} has no config.json that can be read: {broken}.") from broken
    template = Template.of(directory, variables)
    return ChatFormat(template, max(declared, template.tokenizer.size), prefix_check.sentence(template.rewrites()))


def other_calls(chat: ChatFormat, config: RunConfig) -> list[str]:
    """A sentence for each environment whose parser does not read the calls that the model's template writes."""
    kinds = chat.template.parsers()
    return [
        f"environments.{name}.parser is {environment.parser}, and the model's chat template writes tool calls that "
        f"{' or '.join(kinds)} reads."
        for name, environment in config.environments.items()
        if kinds and environment.tools and environment.parser not in kinds
    ]
