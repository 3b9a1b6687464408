"""Datasets of a hub, by name: `hub:openai/gsm8k:main`, that is `hub:NAME`, or `hub:NAME:CONFIGURATION`.

Invariants: a dataset is read once, row by row, into a file of the cache; after that no network is needed, and every
process of a run reads the same rows. The file is complete or does not exist.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl.config import paths
from agentrl.config.hub_words import PREFIX
from agentrl.errors import ConfigError


class HubError(ConfigError):
    """A dataset of a hub cannot be read."""


def local_copy(word: str, splits: Mapping[str, str]) -> Path:
    """A JSONL file with the rows of the known splits. Raises HubError."""
    name, _, configuration = word.removeprefix(PREFIX).partition(":")
    place = paths.cache() / "datasets" / f"{re.sub(r'[^A-Za-z0-9.]+', '-', word).strip('-')}.jsonl"
    if place.is_file():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    file = tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False)  # noqa: SIM115 - it is renamed
    try:
        with file:
            rows = 0
            for row in _rows(word, name, configuration, splits):
                file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
                rows += 1
        if not rows:
            raise HubError(f"{word} has no split to train on or to evaluate.", hint=f"Known are {', '.join(splits)}.")
        os.replace(file.name, place)
    finally:
        Path(file.name).unlink(missing_ok=True)
    return place


def _rows(word: str, name: str, configuration: str, splits: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    try:
        library = importlib.import_module("datasets")
    except ImportError:
        raise HubError(
            f"{word}: reading from a hub needs the package datasets.", hint="`pip install 'agentrl[train]'`"
        ) from None
    try:
        for split, rows in library.load_dataset(name, configuration or None, streaming=True).items():
            if split in splits:
                yield from ({"split": splits[split], **row} for row in rows)
    except Exception as failed:
        # The package raises many kinds of errors: its own, and those of the hub, the network and Arrow.
        reason = " ".join(str(failed).split())[:300].rstrip(".") or type(failed).__name__
        raise HubError(
            f"{word} cannot be read: {reason}.",
            hint="It is read from the hub once: name a file instead if this host has no network.",
        ) from failed
