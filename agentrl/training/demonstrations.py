"""Tokens of demonstrations, made by the same functions as those of episodes.

Invariant: the ids of a demonstration are those of an episode with the same texts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.chat.template import Template
from agentrl.store.demonstrations import Demonstration, Message, Role
from agentrl.tokens.spans import ROOT
from agentrl.training.batch import Segment, Trajectory
from agentrl.training.batch_assembly import IMITATED

SPOKEN: tuple[Role, ...] = ("assistant",)


def trajectory_of(one: Demonstration, template: Template, name: str, roles: Collection[Role] = SPOKEN) -> Trajectory:
    """The tokens of a demonstration. The likelihood of the messages of these roles is trained."""
    segments: list[Segment] = []
    for role, texts, trains in _runs(one.conversation):
        if role == "assistant":
            ids = np.array(template.assistant(texts[0]))
        else:
            ids = np.array(_read(role, texts, one, template, not segments))
            if not segments and role in roles:
                # The first token has no token before it that could predict it.
                segments.append(Segment(parent=ROOT, ids=ids[:1]))
                ids = ids[1:]
        at = len(segments) - 1
        if trains and role in roles:
            versions = [(0, len(ids))]
            segments.append(Segment(parent=at, ids=ids, trains=True, log_probs=np.zeros(len(ids)), versions=versions))
        else:
            segments.append(Segment(parent=at, ids=ids))
    return Trajectory(record=name, group=IMITATED, segments=segments)


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
    demonstrations: Sequence[Demonstration],
    model: Path,
    variables: Mapping[str, Any] | None = None,
    roles: Collection[Role] = SPOKEN,
) -> list[Trajectory]:
    """All demonstrations in the tokens of a model. `variables` are those of its chat template."""
    if not demonstrations:
        return []
    template = Template.of(model, variables)
    return [trajectory_of(one, template, f"demonstration {number}", roles) for number, one in enumerate(demonstrations)]
