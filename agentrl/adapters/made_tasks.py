"""The tasks of an environment of another package, as a dataset on disk.

Invariants:
- An environment is asked once for each combination of its arguments and the version of its package; each has its own
  file.
- A file is complete or does not exist.
- A program that ends, hangs or writes anything, also without end, becomes one sentence.
- The description that a program gives sets only the keys of `DESCRIBED`: the program may be a stranger's, in a sandbox.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.adapters.player import LONGEST_ERROR, OWN_PYTHON, Player, PlayerError, environment_variables
from agentrl.adapters.program_output import TooMuchError, output_of
from agentrl.toolservers.shortening import one_line

WITHIN_S = 300.0
"""This long, because a package may load a dataset."""
DESCRIBED = {"system": str, "max_turns": int, "answer_schema": str}
"""The keys that an environment may set about itself, named as in its section of a run file."""


@dataclass(frozen=True, slots=True)
class GeneratedTasks:
    """The answer of a program about its environment."""

    dataset: Path
    described: dict[str, Any]


def made(player: Player, cache: Path, command: Sequence[str] = ()) -> GeneratedTasks:
    """The dataset and description of an environment, cached. `command`, if given, runs the player's program in a
    sandbox. Raises PlayerError."""
    folder = cache / "environments" / _key(player)
    described, dataset = folder / "environment.json", folder / "tasks.jsonl"
    if not described.is_file():
        found, rows = _asked(player, command or player.command)
        if not rows:
            raise player.error("it has no tasks")
        write_whole(dataset, "".join(json.dumps(row) + "\n" for row in rows))
        write_whole(described, json.dumps(found))
    known = json.loads(described.read_bytes())
    return GeneratedTasks(
        dataset, {key: known[key] for key, kind in DESCRIBED.items() if isinstance(known.get(key), kind)}
    )


def _key(player: Player) -> str:
    version = ""
    if player.python == OWN_PYTHON:
        try:
            version = importlib.metadata.version(player.source.facts.package)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
    named = json.dumps([player.command, version], sort_keys=True)
    return f"{player.source.environment}-{hashlib.blake2b(named.encode(), digest_size=8).hexdigest()}"


def _asked(player: Player, command: Sequence[str]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    asked = b'{"id": 1, "do": "describe"}\n{"id": 2, "do": "rows"}\n'
    try:
        done = output_of(command, asked=asked, within_s=WITHIN_S, env=environment_variables())
    except TooMuchError as much:
        raise _error(player, str(much)) from None
    except subprocess.TimeoutExpired:
        raise player.error(f"its tasks were not there within {WITHIN_S:g} s") from None
    except OSError as refused:
        raise PlayerError(f"{player.source}: {player.python} does not start: {refused.strerror}.") from None
    answers = {}
    for answer in _answers(player, done.written):
        if "refused" in answer:
            refusal, hint = (one_line(str(answer.get(key, "")), LONGEST_ERROR) for key in ("refused", "hint"))
            raise PlayerError(refusal, hint=hint)
        if "error" in answer:
            raise _error(player, str(answer["error"]))
        answers[str(answer.get("id"))] = answer.get("ok")
    described, rows = answers.get("1"), answers.get("2")
    if not isinstance(described, dict) or not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _error(player, f"its program ended with {done.status}: {done.last_line}")
    return described, rows


def _error(player: Player, what: str) -> PlayerError:
    return player.error(one_line(what, LONGEST_ERROR))


def _answers(player: Player, output: bytes) -> list[dict[str, Any]]:
    """Checks each answer, because the package runs beside our program and may write anything."""
    try:
        found = [json.loads(line) for line in output.splitlines()]
    except (ValueError, RecursionError) as wrong:
        raise _error(player, f"an answer of its program cannot be read: {wrong}") from None
    if not all(isinstance(answer, dict) for answer in found):
        raise player.error("an answer of its program cannot be read")
    return found


def write_whole(place: Path, text: str) -> None:
    """Put a file in its place when it is complete."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False) as file:
        file.write(text)
    os.replace(file.name, place)
