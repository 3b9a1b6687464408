"""Which checkpoints belong to the history that stands.

Invariant: a checkpoint counts only if every lineage since then began from it or after it. One that was passed over (its
files were damaged, or its trainer was dead already and did not know) never comes back: the Steps after the place where
history went another way have trained other weights.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.store.documents import Checkpoint, Lineage


def standing(lineages: Sequence[Lineage], checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Those that may be started from, the newest first."""
    last_step = _last_steps(lineages, {checkpoint.id: checkpoint for checkpoint in checkpoints})
    kept = [one for one in checkpoints if one.step <= last_step.get(one.lineage, -1)]
    order = {lineage.id: place for place, lineage in enumerate(_oldest_first(lineages))}
    return sorted(kept, key=lambda one: (order[one.lineage], one.step), reverse=True)


def _last_steps(lineages: Sequence[Lineage], by_id: dict[str, Checkpoint]) -> dict[str, float]:
    """Of every lineage on the way back from the newest: up to which step the history is its own."""
    known = {lineage.id: lineage for lineage in lineages}
    found: dict[str, float] = {}
    ordered = _oldest_first(lineages)
    at: Lineage | None = ordered[-1] if ordered else None
    limit = float("inf")
    while at is not None and at.id not in found:
        found[at.id] = limit
        # What is looked up here may be deleted by now: its name says where it stood.
        parent = by_id.get(at.parent_checkpoint)
        step, lineage = (parent.step, parent.lineage) if parent else _parts(at.parent_checkpoint)
        at, limit = known.get(lineage), float(step)
    return found


def _parts(checkpoint: str) -> tuple[int, str]:
    """Step and lineage out of `step-000100.trainer-0.2@...`."""
    step, _, lineage = checkpoint.removeprefix("step-").partition(".")
    return (int(step), lineage) if step.isdecimal() else (-1, "")


def _oldest_first(lineages: Sequence[Lineage]) -> list[Lineage]:
    return sorted(lineages, key=lambda one: (one.opened_at is not None, one.opened_at, one.id))
