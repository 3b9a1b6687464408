"""Writes a dataset that is known by name: `python -m agentrl.store.known_datasets gsm8k DIR`.

Invariants:
- The rows come from the hub, or are made here in the same form if the hub cannot be reached; the result says which. A
  made dataset depends only on its seed.
- An existing file is never changed.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentrl.errors import AgentrlError, ExitCode, RefusedError, UsageError
from agentrl.store import datasets
from agentrl.store.hub_datasets import HubError, local_copy

MADE_TO_TRAIN, MADE_TO_EVALUATE = 2_000, 200
_NAMES = ("Ada", "Ben", "Chen", "Dana", "Emil", "Fatima", "Goran", "Hana", "Ines", "Jamal")
_THINGS = ("apples", "pencils", "stamps", "marbles", "books", "eggs", "tickets", "bricks")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_RUN_FILE = """\
name: gsm8k
model: {build: tiny}          # or path: a directory in the layout of Hugging Face
environments:
  gsm8k:
    dataset: gsm8k.jsonl
    tools: calculator
    scorer: math
    system: Use the calculator. Write the number in <answer></answer>.
tools: {calculator: {shipped: calculator}}
sampling: {n: 8, max_tokens: 256, context: 1024}
training: {steps: 200, groups: 8}
"""


def gsm8k(folder: Path) -> dict[str, Any]:
    """Word problems with a whole number as the answer."""
    place, run_file = folder / "gsm8k.jsonl", folder / "gsm8k.yaml"
    if there := [str(each) for each in (place, run_file) if each.exists()]:
        raise RefusedError(f"There is {', '.join(there)} already.", hint="Name another directory: --dir DIR.")
    try:
        found = [json.loads(line) for line in local_copy("hub:openai/gsm8k:main", datasets.SPLITS).open()]
        rows = [_of_the_hub(row) for row in found]
        made, why = False, ""
    except HubError as unreachable:
        rows, made, why = list(made_problems()), True, unreachable.message
    folder.mkdir(parents=True, exist_ok=True)
    place.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    run_file.write_text(_RUN_FILE)
    return {"written": [str(place), str(run_file)], "rows": len(rows), "made": made, "why": why}


def _of_the_hub(row: dict[str, Any]) -> dict[str, Any]:
    steps, _, number = row["answer"].rpartition("####")
    return {
        "query": row["question"],
        "answer": number.strip().replace(",", ""),
        "steps": steps.strip(),
        "split": row["split"],
    }


def made_problems(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Problems of two to four steps, each once."""
    drawn = random.Random(seed)
    known: set[str] = set()
    while len(known) < MADE_TO_TRAIN + MADE_TO_EVALUATE:
        query, answer, steps = _problem(drawn)
        if query not in known:
            split = "train" if len(known) < MADE_TO_TRAIN else "eval"
            known.add(query)
            yield {"query": query, "answer": str(answer), "steps": "\n".join(steps), "split": split}


def _problem(drawn: random.Random) -> tuple[str, int, list[str]]:
    name, other = drawn.sample(_NAMES, 2)
    thing = drawn.choice(_THINGS)
    number = drawn.randint(2, 30)
    text, steps = f"On {drawn.choice(_DAYS)} {name} has {number} {thing}.", []
    for kind in drawn.sample(("buys", "times", "gives", "boxes"), drawn.randint(2, 4)):
        before, some = number, drawn.randint(2, 9)
        if kind == "buys":
            number += some
            text += f" Then {name} buys {some} more."
            steps.append(f"{before} + {some} = {number}")
        elif kind == "times":
            number *= some
            text += f" A friend brings so many that there are {some} times as many."
            steps.append(f"{before} * {some} = {number}")
        elif kind == "gives" and before > some:
            number -= some
            text += f" {name} gives {some} of them to {other}."
            steps.append(f"{before} - {some} = {number}")
        else:
            boxes = drawn.randint(2, 6)
            number += some * boxes
            text += f" {other} adds {boxes} boxes with {some} {thing} each."
            steps += [f"{some} * {boxes} = {some * boxes}", f"{before} + {some * boxes} = {number}"]
    return f"{text} How many {thing} does {name} have now?", number, steps


KNOWN = {"gsm8k": gsm8k}


def main(name: str, folder: str) -> int:
    try:
        if name not in KNOWN:
            raise UsageError(f"There is no dataset {name!r}.", hint=f"Known are {', '.join(KNOWN)}.")
        print(json.dumps(KNOWN[name](Path(folder))))
    except AgentrlError as wrong:
        return _failed(wrong)
    except OSError as wrong:
        return _failed(UsageError(f"{wrong.filename or folder} cannot be written: {wrong.strerror}."))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _failed(wrong: AgentrlError) -> int:
    print(json.dumps({"event": "failed", "message": wrong.message, "hint": wrong.hint, "code": wrong.exit_code}))
    return wrong.exit_code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
