"""Makes the ids of documents. An id contains the id of the document that it belongs to.

Invariants: the ids of a Task's Records begin with its id and `#`, the ids of a Record's model calls with its id and
`/`, so everything inside of a document is one range of ids.
"""

from __future__ import annotations


def task_id(environment: str, split: str, epoch: int, row: int) -> str:
    return f"{environment}/{split}/{epoch}/{row:06d}"


def record_id(task: str, round: int, seat: int, attempt: int) -> str:
    return f"{task}#r{round}.s{seat}.a{attempt}"


def call_id(record: str, index: int) -> str:
    return f"{record}/{index:03d}"


def tool_call_id(call: str, number: int) -> str:
    return f"{call}.{number}"


def within(name: str, separator: str = "/") -> dict[str, str]:
    """The range of the ids of everything that belongs to this id, for a filter of `_id`."""
    return {"$gte": f"{name}{separator}", "$lt": f"{name}{chr(ord(separator) + 1)}"}


def step_id(lineage: str, step: int) -> str:
    return f"{lineage}/{step:06d}"


def checkpoint_id(step: int, lineage: str) -> str:
    return f"step-{step:06d}.{lineage}"


def epoch_id(environment: str, split: str, epoch: int) -> str:
    return f"{environment}/{split}/{epoch}"
