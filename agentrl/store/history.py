"""The valid history of a run: the lineages behind the newest one, and how far each of them counts. Pure.

A lineage begins from a checkpoint of another one, so lineages are a tree. Steps that are not on the path from the
newest lineage back to the root were rolled back; their checkpoints stay, and a rollback can return to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentrl.store.weight_documents import Checkpoint, Lineage


def last_steps(lineages: Sequence[Lineage]) -> dict[str, float]:
    """For each lineage on the path from the newest one to the root: its last step that counts."""
    ordered = oldest_first(lineages)
    place = {lineage.id: number for number, lineage in enumerate(ordered)}
    found: dict[str, float] = {}
    at: Lineage | None = ordered[-1] if ordered else None
    limit = math.inf
    while at is not None and at.id not in found:
        found[at.id] = limit
        # The checkpoint may be deleted already, but its name has the step and the lineage.
        step, lineage = _parts(at.parent_checkpoint)
        if not at.parent_checkpoint and at.first_step > 1 and place[at.id] > 0:
            step, lineage = at.first_step - 1, ordered[place[at.id] - 1].id
        at, limit = (ordered[place[lineage]] if lineage in place else None), float(step)
    return found


def valid_checkpoints(lineages: Sequence[Lineage], checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints that a trainer may start from, the newest first.

    A checkpoint counts only if every lineage since then began from it or from a later one. A checkpoint that was
    skipped (its files were damaged, its trainer was replaced without noticing, or it was rolled back) does not count,
    because the steps after that point trained other weights.
    """
    last = last_steps(lineages)
    kept = [checkpoint for checkpoint in checkpoints if checkpoint.step <= last.get(checkpoint.lineage, -1)]
    order = {lineage.id: place for place, lineage in enumerate(oldest_first(lineages))}
    return sorted(kept, key=lambda one: (order[one.lineage], one.step), reverse=True)


def oldest_first(lineages: Sequence[Lineage]) -> list[Lineage]:
    return sorted(lineages, key=lambda one: (one.opened_at is not None, one.opened_at, one.id))


def _parts(checkpoint: str) -> tuple[int, str]:
    """Step and lineage of `step-000100.trainer-0.2@...`."""
    step, _, lineage = checkpoint.removeprefix("step-").partition(".")
    return (int(step), lineage) if step.isdecimal() else (-1, "")
