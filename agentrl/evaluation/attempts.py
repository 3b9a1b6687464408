"""One attempt at a task by a model, and the key by which a repeated attempt is recognised.

Invariants:
- Two attempts have the same key only if model, task, environment and the rule of sampling are the same.
- An attempt that failed for infrastructure is no result, because it shows nothing about the model. It is made again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

WEIGHTS = (".safetensors", ".json", ".jinja", ".model", ".bin")
"""The files of a model's directory that identify the model."""


def key_of(*, model: str, environment: str, task: str, rule: dict[str, Any], attempt: int) -> str:
    """The key of an attempt. `model`, `environment` and `task` are digests of their content, not names."""
    parts = json.dumps([model, environment, task, rule, attempt], sort_keys=True)
    return hashlib.blake2b(parts.encode(), digest_size=16).hexdigest()


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


def tags_of(extra: dict[str, Any]) -> tuple[str, ...]:
    tags = extra.get("tags", ())
    return tuple(map(str, tags)) if isinstance(tags, list | tuple) else (str(tags),)


def _digest(value: Iterable[Any]) -> str:
    return hashlib.blake2b(json.dumps(list(value), sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
