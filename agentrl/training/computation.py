"""Work on tensors: in a thread, so that the trainer's loop stays responsive, and within a phase of its unit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from agentrl.tracing import spans, trace_context
from agentrl.unit import Unit

AT_MOST_S = 900.0
"""Between two micro-batches; a step may take any number of them."""

T = TypeVar("T")


async def computed(unit: Unit, phase: str, step: int, work: Callable[..., T], *arguments: object) -> T:
    """The caller does one piece of work at a time."""
    root = None if trace_context.current() is not None else trace_context.new()
    with (
        unit.phase(phase, at_most_s=AT_MOST_S),
        spans.span(f"compute {phase}", root=root, agentrl__step=step),
    ):
        return await asyncio.to_thread(work, *arguments)
