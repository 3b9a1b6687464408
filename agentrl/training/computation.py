"""Work on tensors: in a thread, so that the trainer's loop stays responsive, and within a phase of its unit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from agentrl.tracing import spans, trace_context
from agentrl.unit import Unit

AT_MOST_S = 900.0
"""The longest time between two micro-batches; a step may have any number of them."""

T = TypeVar("T")


async def computed(unit: Unit, phase: str, step: int, work: Callable[..., T], *arguments: object) -> T:
    """Runs one piece of work. The caller starts one at a time."""
    root = None if trace_context.current() is not None else trace_context.new()
    with (
        unit.phase(phase, at_most_s=AT_MOST_S),
        spans.span(f"compute {phase}", root=root, agentrl__step=step),
    ):
        return await asyncio.to_thread(work, *arguments)
