"""One attempt at a task by a model, the key by which a repeated attempt is recognised, and the attempts that count.

Invariants:
- Two attempts have the same key only if model, task, environment and the rule of sampling are the same.
- Figures are of one setup of a model in an environment, which is the newest one. Attempts with other weights, another
  scorer or another rule of sampling are in no figure, even if the name of the model is the same.
- An attempt that failed for infrastructure is no result, because it shows nothing about the model. It is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl.protocol.evaluation_commands import Attempt

WEIGHTS = (".safetensors", ".json", ".jinja", ".model", ".bin")
"""The files of a model's directory that identify the model."""


def key_of(*, model: str, environment: str, task: str, rule: dict[str, Any], attempt: int) -> str:
    """The key of an attempt. `model`, `environment` and `task` are digests of their content, not names."""
    parts = json.dumps([model, environment, task, rule, attempt], sort_keys=True)
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


def setup_of(*, model: str, environment: str, rule: dict[str, Any]) -> str:
    return _digest([model, environment, rule])


def counting(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The attempts from which figures are computed."""
    setups = {(attempt.model, attempt.environment): attempt.setup for attempt in attempts}
    newest: dict[tuple[str, str, str, int], Attempt] = {}
    for attempt in attempts:
        if attempt.setup == setups[attempt.model, attempt.environment]:
            # The row of a task may have changed, which is another key.
            newest[attempt.model, attempt.environment, attempt.task, attempt.attempt] = attempt
    return list(newest.values())


def content_of(query: str, answer: str) -> str:
    """The content by which two tasks are the same if they come from different files or have no ids."""
    return hashlib.blake2b(json.dumps([query, answer]).encode(), digest_size=6).hexdigest()


def digest_of_model(directory: Path) -> str:
    """A digest of the names, sizes and times of its files: weights that were written again are another model."""
    found = sorted(file for file in directory.iterdir() if file.suffix in WEIGHTS)
    return _digest([file.name, (known := file.stat()).st_size, known.st_mtime_ns] for file in found)


def digest_of_environment(settings: dict[str, Any], code: Iterable[Path]) -> str:
    """A digest of its keys in the run file and of its own code. Modules that the code imports are not included."""
    files = [[file.name, hashlib.blake2b(file.read_bytes()).hexdigest()] for file in code]
    return _digest([settings, files])


def tags_of(extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Each once, or its task would count twice in the figures of that tag."""
    tags = extra.get("tags")
    given = tags if isinstance(tags, list | tuple) else (tags,)
    return tuple(dict.fromkeys(str(tag) for tag in given if tag is not None))


def difficulty_of(extra: Mapping[str, Any]) -> str:
    difficulty = extra.get("difficulty")
    return "" if difficulty is None else str(difficulty)


def _digest(value: Iterable[Any]) -> str:
    return hashlib.blake2b(json.dumps(list(value), sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
