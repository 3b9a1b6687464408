"""Tokens of demonstrations, made by the same functions as those of episodes.

Invariant: the ids of a demonstration are those of an episode with the same texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.chat.template import Template
from agentrl.store.demonstrations import Demonstration, Message, Role
from agentrl.tokens.spans import ROOT
from agentrl.training.batch import Segment, Trajectory


def trajectory_of(one: Demonstration, template: Template, name: str) -> Trajectory:
    """The tokens of a demonstration, whose likelihood is trained."""
    segments: list[Segment] = []
    for role, texts, trains in _runs(one.conversation):
        if role == "assistant":
            ids = np.array(template.assistant(texts[0]))
            at = len(segments) - 1
            if trains:
                versions = [(0, len(ids))]
                segments.append(
                    Segment(parent=at, ids=ids, trains=True, log_probs=np.zeros(len(ids)), versions=versions)
                )
            else:
                segments.append(Segment(parent=at, ids=ids))
        else:
            ids = np.array(_read(role, texts, one, template, not segments))
            segments.append(Segment(parent=len(segments) - 1 if segments else ROOT, ids=ids))
    # Demonstrations begin alike, so they are packed together.
    return Trajectory(record=name, group="demonstrations", segments=segments)


def _read(role: Role, texts: Sequence[str], one: Demonstration, template: Template, first: bool) -> list[int]:
    """The ids that the environment adds, including the opening of the assistant's turn."""
    if first:
        return template.first(one.instructions, [tool.spec for tool in one.tools], "\n".join(texts))
    return template.tool_results(texts) if role == "tool" else template.user("\n".join(texts))


def _runs(messages: Sequence[Message]) -> Iterator[tuple[Role, list[str], bool]]:
    """Joins consecutive messages of one role, such as several results of one turn. Also yields whether they train."""
    texts: list[str] = []
    for place, message in enumerate(messages):
        texts.append(message.content)
        if place + 1 == len(messages) or messages[place + 1].role != message.role:
            yield message.role, texts, message.train
            texts = []


def tokenized(
    demonstrations: Sequence[Demonstration], model: Path, variables: Mapping[str, Any] | None = None
) -> list[Trajectory]:
    """All demonstrations in the tokens of a model. `variables` are those of its chat template."""
    if not demonstrations:
        return []
    template = Template.of(model, variables)
    return [trajectory_of(one, template, f"demonstration {number}") for number, one in enumerate(demonstrations)]
