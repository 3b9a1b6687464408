"""Formats decisions about a record for the command line and the console."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.formatting.amounts import counted


def decisions(record: Mapping[str, Any]) -> list[str]:
    """One sentence for each: the parts of its score, left-out context, rescoring, another attempt, a review."""
    lines = []
    if parts := record.get("score_parts"):
        lines.append(f"parts of the score: {', '.join(f'{name} {value:.4g}' for name, value in parts.items())}")
    if context := record.get("context"):
        parts_of_it = ", ".join(f"{context[name]} {name}" for name in ("tokens", "turns", "results") if name in context)
        lines.append(f"context: {counted(context['edits'], 'edits')} left out {parts_of_it}")
    if before := record.get("scores_before"):
        lines.append(f"scored again; before: {', '.join(f'{score:.4g}' for score in before)}")
    rescore = record.get("rescore") or {}
    if rescore.get("wanted"):
        lines.append("waits to be scored again by a sampler")
    elif rescore.get("error"):
        lines.append(f"kept its score: {rescore['error']}")
    if record.get("requeued_by"):
        lines.append("requeued: another attempt has its seat")
    if review := record.get("review"):
        note = f": {review['note']}" if review.get("note") else ""
        lines.append(f"review: {review['verdict']} by {review['who']}{note}")
    return lines
