"""The smallest run of the data plane that has something to learn.

Invariants:
- The model was warmed up with demonstrations that call a tool with state. Every other demonstration ends with a right
  answer, so groups have right and wrong attempts.
- Everything else is as small as possible.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from assets import shop_dataset, shop_server

ITEM = "bake"
PRICE = shop_server.price_of(ITEM)
SYSTEM = "Price it."


class Lesson(NamedTuple):
    """The tool calls and the answer of a demonstration."""

    calls: tuple[tuple[str, int], ...]
    """Each call with its result."""
    answer: int


LOOKED_UP = Lesson(((f"lookup({ITEM})", PRICE),), PRICE)
RECKONED = Lesson(
    (*LOOKED_UP.calls, (f"calculator(2*{PRICE})", 2 * PRICE), ("calculator(ans+1)", 2 * PRICE + 1)), 2 * PRICE + 1
)
"""The last call uses the result before it, which the session of the tool must remember."""


def data_plane(
    lesson: Lesson = LOOKED_UP, *, steps: int = 4, bound: int = 2, shop_arguments: Sequence[str] = ("--no-faults",)
) -> dict[str, Any]:
    """The data plane in a run file. A test that needs other values changes its own copy."""
    return {
        "model": {"build": "tiny"},
        "environments": {
            "shop": {
                "dataset": "train.jsonl",
                "evaluation": "held-out.jsonl",
                "tools": ["shop"],
                "parser": "minicpm",
                "system": SYSTEM,
                "max_turns": len(lesson.calls) + 2,
                "epochs": 50,
            }
        },
        "tools": {
            "shop": {
                "command": ["{python}", "-m", "assets.shop_server", *shop_arguments],
                "session": "keyed",
                "timeout_s": 20,
                "try_again": True,
            }
        },
        "sampling": {"n": 8, "max_tokens": 24, "context": 128},
        "rollout": {"concurrency": 16, "max_in_flight": 32, "episode_s": 120},
        "engines": {"slots": 16},
        "training": {
            "steps": steps,
            "groups": 1,
            "optimizer": "muon",
            "learning_rate": 1e-4,
            "bound": bound,
            "checkpoint_every": 3,
            "warmup": {"dataset": "shown.jsonl", "steps": 40, "batch": 8, "learning_rate": 4e-3},
        },
        "evaluation": {"every": 1000, "tasks": 4},
    }


def write_data(folder: Path, lesson: Lesson = LOOKED_UP) -> None:
    """Write tasks, held-out tasks, and demonstrations. Every other demonstration ends with a wrong answer."""
    rows = [{"query": f"{ITEM} {number}", "answer": str(lesson.answer)} for number in range(44)]
    for name, lines in (
        ("train.jsonl", rows[4:]),
        ("held-out.jsonl", rows[:4]),
        ("shown.jsonl", [_shown(lesson, number) for number in range(100, 116)]),
    ):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def _shown(lesson: Lesson, number: int) -> dict[str, Any]:
    said = [("system", SYSTEM), ("user", f"{ITEM} {number}")]
    for call, result in lesson.calls:
        said += [("assistant", f"<tool_call>{call}</tool_call>"), ("tool", str(result))]
    said.append(("assistant", f"<answer>{lesson.answer + number % 2}</answer>"))
    return {"messages": [{"role": role, "content": content} for role, content in said], "tools": shop_dataset.tools()}
